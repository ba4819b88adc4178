# Every target sets up the environment first; that is instant when nothing changed.
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest --durations=10
# Each worker has servers of its own. Three keep two cores busy while a test waits; with four, the whole takes longer. Who is ready first takes over half of the rest.
PARALLEL := -n 3 --dist worksteal
# In a fresh checkout each worker would compile all tests, at the same time.
COMPILED = [ -d tests/__pycache__ ] || $(PYTEST) tests --collect-only -q >/dev/null
# Airflow is started dozens of times; without bytecode each start compiles it anew, which takes longer than the start.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help setup quick-java test everything unit integration mysql lint format types size lowest services compat demo soak fuzz bench bench-quick bench-growth bench-rewind bench-lag bench-pages bench-formats bench-transforms bench-lake bench-connect bench-scale airflow docs reference constraints release-check clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv, see to Java, fetch the broker (runs by itself before everything else)
	@scripts/bootstrap.sh

# Not a part of setup: only tests start so much Java that it pays.
quick-java: setup
	@$(PYTHON) -m devstack quick-java

test: lint ## lint, types, and every test of a day against real servers
	@# Types are checked in what the tests leave of two cores.
	$(COMPILED) & $(PYTHON) -m devstack quick-java && wait && { nice $(PYTHON) -m mypy & types=$$!; $(PYTEST) tests $(PARALLEL); tests=$$?; wait $$types && exit $$tests; }

everything: test soak ## every test: those of a day, then the long ones; hours

unit: setup ## the tests that need no server
	$(PYTEST) tests -m "not server and not long"

integration: quick-java ## the tests with a real broker, Postgres, Spark and Airflow
	$(PYTEST) tests -m "server and not long" $(PARALLEL)

mysql: quick-java ## the tests of MariaDB on MySQL (ARGS="-k NAME")
	$(PYTEST) tests -m mysql --servers mysql-8.0 $(PARALLEL) $(ARGS)

lint: setup ## check format, lint rules, and which packages may import which
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) scripts/markdown_lines.py
	.venv/bin/lint-imports

format: setup ## format the code, and fix what can be fixed
	$(PYTHON) -m ruff check --fix-only .
	$(PYTHON) -m ruff format .

types: setup ## check types
	$(PYTHON) -m mypy

size: setup ## count lines of code and functions, and fail above the limits
	$(PYTHON) scripts/size.py

# What this package uses libraries for: Kafka, COPY, formats, lake tables, Spark, SQL, pages, commands. Older ones warn of what is no fault here.
LOWEST := hooks/test_postgres_connection operators/test_batch loading/test_load loading/test_avro_loads loading/test_protobuf_loads \
	formats/test_json_schema formats/test_protobuf_readers sinks/test_upsert sinks/test_mysql_load sinks/delta/test_tables sinks/parquet/test_files \
	sinks/iceberg/test_iceberg_files sinks/iceberg/test_iceberg_transaction sinks/iceberg/test_private transforms/test_sql_text \
	transforms/test_sql_loads plugin/test_access cli/test_airflow_command cli/test_doctor
compat: quick-java ## test other versions of Python, Airflow, Spark and servers, and write their table (CELLS="oldest postgres-14"; all: hours)
	$(PYTHON) -m compat $(CELLS)

lowest: setup ## test the lowest versions that pyproject.toml allows, in an environment of its own (ARGS="-k NAME")
	@scripts/bootstrap.sh lowest
	.build/lowest/bin/python -m pytest -W default $(PARALLEL) $(LOWEST:%=tests/%.py) $(ARGS)

services: quick-java ## loads on Livy, and on stand-ins for Databricks, EMR Serverless, Dataproc and Kubernetes, through their providers, in an environment of its own
	@scripts/bootstrap.sh services
	.build/services/bin/python -m pytest -W default -m "long or not long" tests/hooks/test_services.py tests/system/test_kubernetes.py $(ARGS)

demo: setup ## see it work: two loads of orders with Airflow and Spark, and the proof that they are exact
	$(PYTHON) -m demo

soak: quick-java ## a thousand random loads, faults and kills, with the proof after each, the long tests, and all examples (STEPS=1000 SEED=1)
	HYPOTHESIS_PROFILE=soak $(PYTEST) tests -m long $(PARALLEL)
	HYPOTHESIS_PROFILE=soak $(PYTEST) tests -m "hypothesis and not server"
	RACES=100 SOAK_STEPS=$(or $(STEPS),1000) SOAK_SEED=$(or $(SEED),1) \
		$(PYTEST) tests/system/test_soak.py tests/loading/test_races.py -s -m "long or not long"

fuzz: setup ## feed damaged records, schemas, manifests, previews, forms and messages to what reads them (MINUTES=60 SEED=1 ARGS=avro)
	$(PYTHON) -m fuzz --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1) $(ARGS)

bench: setup ## compare loads of up to 5,000,000 records with other ways to load; half an hour (ARGS="--datasets orders:N --write")
	$(PYTHON) -m benchmarks.compare $(ARGS)

bench-quick: setup ## the same for every day: 1,000 and 200,000 records in two rounds
	$(PYTHON) -m benchmarks.compare --datasets orders:200000 --rounds 2 $(ARGS)

bench-growth: setup ## measure what grows with partitions, batches and records; a quarter of an hour
	$(PYTHON) -m benchmarks.growth $(ARGS)

bench-rewind: setup ## measure previews and rewinds of 10 to 2,000 partitions, and after 100,000 batches
	$(PYTHON) -m benchmarks.rewind $(ARGS)

bench-lag: setup ## measure looks at 10 to 10,000 partitions, and a triggerer with a thousand lag triggers
	$(PYTHON) -m benchmarks.lag
	$(PYTHON) -m benchmarks.sensors
	$(PYTHON) -m benchmarks.triggers $(ARGS)

bench-pages: setup ## measure the table of 500 groups of 10,000 partitions in the web interface
	$(PYTHON) -m benchmarks.pages $(ARGS)

bench-formats: setup ## measure the decoders of records on one core; ten seconds
	$(PYTHON) -m benchmarks.formats

bench-transforms: setup ## measure transforms in the pass that decodes records, in loads of 5,000,000; ten minutes (ARGS="--records N")
	$(PYTHON) -m benchmarks.transform_costs $(ARGS)

bench-scale: setup ## measure the driver and the commit with up to 100,000 slices and 2,000 files; five minutes
	$(PYTHON) -m benchmarks.scale $(ARGS)

bench-lake: setup ## compare loads of 20,000,000 records into lake tables with Spark's own connectors, on local[*] and a cluster; an hour (ARGS="--rounds 1")
	$(PYTHON) -m benchmarks.lake $(ARGS)

bench-connect: setup ## compare loads through spark-submit, Spark Connect and kept sessions; five minutes (ARGS=--write)
	$(PYTHON) -m benchmarks.connect $(ARGS)

airflow: setup ## try it in a browser: Airflow with a broker, Postgres, orders and the example DAGs
	$(PYTHON) -m devstack.playground

docs: setup ## build the documents as a site, .build/site/index.html; warnings are errors
	$(PYTHON) -m sphinx -q -W --keep-going -b html -d .build/doctrees docs .build/site

reference: setup ## write the pages of the commands from their help
	$(PYTHON) scripts/command_reference.py

COMPILE := uv pip compile --quiet --no-annotate -p 3.11 --custom-compile-command "make constraints"
EXTRAS := --extra spark --extra postgres --extra sqlite --extra avro --extra protobuf --extra json-schema --extra sql --extra iceberg --extra delta --extra parquet --extra hdfs
SERVICES := --extra livy --extra databricks --extra emr --extra dataproc
# The oldest Airflow needs the dependencies of its time, but for those that pyproject.toml names, and what they need.
AIRFLOW_TIME := 2026-02-10
constraints: setup ## pin what pyproject.toml and constraints/*.in ask for, with hashes (ARGS=--upgrade: the newest of all)
	@export PATH="$$PATH:.build/tools/bin"; \
	$(COMPILE) --generate-hashes $(ARGS) pyproject.toml $(EXTRAS) --group dev -o constraints/dev.txt >/dev/null && \
	$(COMPILE) --no-header --no-deps --resolution lowest-direct pyproject.toml $(EXTRAS) --extra mysql -o .build/lowest.in >/dev/null && \
	{ grep -E '^apache-airflow(-providers-common-compat)?==' .build/lowest.in; printf 'apache-airflow-providers-%s\n' fab openlineage; } | \
	$(COMPILE) --no-header --exclude-newer $(AIRFLOW_TIME) - | grep -vE "^($$(sed 's/\[.*\]//; s/==.*/|/' .build/lowest.in | tr -d '\n')cryptography)==" >.build/airflow.txt && \
	cp constraints/dev.txt .build/lowest.txt && \
	$(COMPILE) --generate-hashes -c .build/lowest.in -c .build/airflow.txt pyproject.toml $(EXTRAS) --extra mysql --group dev -o .build/lowest.txt >/dev/null && \
	cp .build/lowest.txt constraints/lowest.txt && \
	cp constraints/dev.txt .build/services.txt && \
	$(COMPILE) --generate-hashes $(ARGS) pyproject.toml $(EXTRAS) $(SERVICES) --group dev --group services -o .build/services.txt >/dev/null && \
	cp .build/services.txt constraints/services.txt && \
	$(COMPILE) --generate-hashes $(ARGS) constraints/build.in -o constraints/build.txt >/dev/null && \
	$(COMPILE) --generate-hashes $(ARGS) constraints/uv.in -o constraints/uv.txt >/dev/null && \
	$(COMPILE) --generate-hashes $(ARGS) constraints/release.in -o constraints/release.txt >/dev/null

release-check: setup ## check that a release could be made, and make its files in dist/; five minutes (ARGS=--unreleased)
	@export PATH="$$PATH:.build/tools/bin"; $(PYTHON) scripts/release_check.py $(ARGS)
	$(PYTEST) tests/system/test_packaging.py -m "long or not long"

clean: ## remove what was built, fetched and cached; .venv too
	rm -rf .venv .build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
