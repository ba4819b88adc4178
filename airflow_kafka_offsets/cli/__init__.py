"""The command line: prints what the packages below decide and store, and decides nothing itself.

`commands` declares all commands, and `make reference` writes them into `docs/commands/`. What a command runs is a
function in a module that is imported then. Two programs are made of the commands: `airflow kafka-offsets`
(`airflow_program`), with Airflow's connections, and `kafka-offsets` (`program`), which does not import Airflow.
"""
