#!/bin/sh
# Makes a checkout ready to work with, on a machine that has git, make and Python 3.11: an environment in .venv with
# everything the tests need, Java, and Kafka's jars. With the argument `lowest` or `services`, makes an environment of
# constraints/lowest.txt in .build/lowest, or of constraints/services.txt in .build/services. Says one line a step; a
# second run does nothing.
set -eu
cd "$(dirname "$0")/.."

case ${1:-} in
    lowest | services) environment=.build/$1 listed=constraints/$1.txt stamp=.build/$1.stamp ;;
    *) environment=.venv listed=constraints/dev.txt stamp=.build/setup.stamp ;;
esac

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# step MESSAGE COMMAND...: the command's output is shown only when it fails.
step() {
    printf '%s\n' "$1"
    shift
    log=$(mktemp .build/setup-XXXXXX)
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        fail "failed: $*"
    fi
    rm -f "$log"
}

# What the environment was made from. The folder belongs to it: an environment cannot be moved.
state() {
    pwd
    cksum pyproject.toml constraints/* scripts/bootstrap.sh devstack/kafka_jars.py devstack/maven.py devstack/mariadb_programs.py devstack/debian.py
}

find_python() {
    for candidate in python3.11 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

install_uv() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python lacks the venv module: install python3-venv (Debian, Ubuntu: apt-get install python3-venv)."
    step "installing uv into .build/tools" "$python" -m venv --clear .build/tools
    step "  (with pip)" .build/tools/bin/python -m pip install --quiet --require-hashes -r constraints/uv.txt
}

install_java() {
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        step "updating the list of packages, for Java" apt-get update
        for package in openjdk-21-jre-headless openjdk-17-jre-headless default-jre-headless; do
            if apt-get install --simulate "$package" >/dev/null 2>&1; then
                step "installing $package" env DEBIAN_FRONTEND=noninteractive \
                    apt-get install --yes --no-install-recommends "$package"
                return
            fi
        done
    elif command -v brew >/dev/null; then
        step "installing openjdk@17" brew install openjdk@17
        # Homebrew leaves it out of PATH; everything here looks into the environment first.
        ln -sf "$(brew --prefix openjdk@17)/bin/java" "$environment/bin/java"
    fi
}

if [ -x "$environment/bin/python" ] && [ -f "$stamp" ] && [ "$(state)" = "$(cat "$stamp")" ]; then
    exit 0
fi
mkdir -p .build
rm -f "$stamp"

python=$(find_python) ||
    fail "Python 3.11 or newer is needed (Debian, Ubuntu: apt-get install python3.11-venv; macOS: brew install python@3.11)."

# Of exactly the pinned version, which decides what a hash is required of.
is_pinned() {
    [ "$("$1" --version 2>/dev/null | cut -d ' ' -f 2)" = "$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' constraints/uv.txt)" ]
}

if is_pinned uv; then
    uv=uv
else
    uv=.build/tools/bin/uv
    is_pinned "$uv" || install_uv
fi

if ! "$environment/bin/python" -c '' 2>/dev/null; then
    step "making $environment with $("$python" --version)" "$uv" venv --clear --python "$python" "$environment"
fi
# What comes from the operating system's packages and what comes from Python's are fetched side by side.
fetch_programs() {
    if ! "$environment/bin/python" -m devstack java >/dev/null 2>&1; then
        install_java
        "$environment/bin/python" -m devstack java >/dev/null
    fi
    echo "fetching MariaDB"
    "$environment/bin/python" -m devstack mariadb || echo "  without it: the tests that need it are skipped" >&2
}
# A failure beside it must not leave it running.
trap wait EXIT
fetch_programs &
programs=$!

# The constraints list all that is needed: nothing is asked of the index but the files. PySpark is no wheel there; to compress
# the wheel that is made of it takes longer than all else.
step "installing what $listed lists (minutes, the first time)" \
    "$uv" pip install --python "$environment/bin/python" --require-hashes --no-deps --build-constraints constraints/build.txt \
    --config-settings-package pyspark:--build-option=--compression=stored -r "$listed"
step "installing this package in place" \
    "$uv" pip install --python "$environment/bin/python" --no-deps --build-constraints constraints/build.txt -e .
step "checking that nothing is missing" "$uv" pip check --python "$environment/bin/python"

wait "$programs"
step "fetching Kafka's jars" "$environment/bin/python" -m devstack jars

state >"$stamp"
echo "ready: make help"
