# What a user types: `make demo`, `make test`. `make help` lists the rest.
# Only relative paths are used here, so the checkout may lie in a folder with spaces in its name.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
PYTHON_MIN := 3.11
# Hundreds of processes are started here: what they import is to be compiled once.
export PYTHONDONTWRITEBYTECODE :=

# The first of these that is new enough makes .venv; `make PYTHON=/path/to/python demo` names one.
PYTHON ?= $(firstword $(foreach name,python3 python3.11 python3.12 python3.13,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(PYTHON_MIN)".split("."))))' \
	2>/dev/null && echo $(name))))

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: venv ## Start the local stack, land a week of flights, run it through Airflow, prove it
	@.venv/bin/semel demo

.PHONY: demo-kafka
demo-kafka: venv ## The same through a Kafka broker: a live schedule, and a backfill by date
	@.venv/bin/semel demo --kafka

.PHONY: demo-queue
demo-queue: venv ## The same through a queue: publisher's retries, deadlines that lapse
	@.venv/bin/semel demo --queue

PYTEST = .venv/bin/python -m pytest
WORKERS = -n auto
# T=kafka, T=tests/unit/test_bloom.py or T='some words': that part of the tests, each case of it.
PART = $(foreach t,$(firstword $(subst ::, ,$(T))),$(if $(wildcard $(t)),'$(T)',tests -k '$(T)'))

.PHONY: demo-lake
demo-lake: venv ## The same from a bucket to a Delta table, which DuckDB reads
	@.venv/bin/semel demo --lake

.PHONY: test
test: venv ## Attack each promise once: a sample, 8 to 10 minutes. T=kafka, T=FILE: all of a part
ifdef T
	@$(PYTEST) $(WORKERS) $(PART)
else
	@$(PYTEST) $(WORKERS) --tier quick tests
	@.venv/bin/python tests/old_postgres.py
endif

.PHONY: rest
rest: venv ## A share of what `make test` left out with the same SEMEL_SEED: some 10 minutes
	@$(PYTEST) $(WORKERS) --tier rest tests
	@.venv/bin/python tests/matrix.py --quick

.PHONY: proof
proof: venv ## Run every case: all kills, controls, orders, clusters, the older PostgreSQL: 2 hours
	@$(PYTEST) $(WORKERS) --tier proof --timeout 900 tests
	@.venv/bin/python tests/old_postgres.py --all
	@.venv/bin/python tests/matrix.py

.PHONY: matrix
matrix: venv ## Run the suites on each version of Spark and Airflow: V=4.0.5, or V='4.0.5 3.1.8', those alone
	@.venv/bin/python tests/matrix.py $(if $(V),--versions $(V))

.PHONY: test-compose
test-compose: venv ## Build the images of docker-compose.yaml, run a week, kill each service
	@$(PYTEST) -s -m proof tests/containers

.PHONY: soak
soak: venv ## Take random steps for SEMEL_SOAK_SECONDS=600, with processes killed
	@$(PYTEST) -m soak -s tests/chaos

.PHONY: screenshots
screenshots: venv ## Take the guide's pictures anew, from a live stack
	@SEMEL_GUIDE_SHOTS=1 $(PYTEST) -m "rest or proof" tests/acceptance/test_c_day.py tests/acceptance/test_c_replay.py \
		-k 'whole_day or wrong_transform'

.PHONY: chaos
chaos: venv ## Kill the live stack KILLS=30 times at random (SEED=n), and prove its output exact
	@.venv/bin/python tests/fire $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))

.PHONY: bench-quick
bench-quick: venv ## Measure beside Spark's pass-through, and the catalog alone: under 5 minutes
	@.venv/bin/python benchmarks/all.py --quick

.PHONY: bench
bench: venv ## Run all benchmarks, and write benchmarks/RESULTS.md: some 85 minutes
	@.venv/bin/python benchmarks/all.py

.PHONY: up
up: venv ## Start the local stack: Postgres, Spark, Airflow
	@.venv/bin/semel up

.PHONY: down
down: ## Stop everything that was started here
	@if [ -x .venv/bin/semel ]; then .venv/bin/semel down; else echo "nothing was installed here"; fi

.env: ## Write your uid, keys and passwords for docker-compose.yaml, once
	@set -e; umask 077; mkdir -p data; \
	words="POSTGRES_PASSWORD AIRFLOW_PASSWORD AIRFLOW_SECRET SPARK_TOKEN"; \
	{ echo "SEMEL_UID=$$(id -u)"; \
	for word in $$words; do echo "SEMEL_$$word=$$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"; done; \
	echo "SEMEL_AIRFLOW_FERNET_KEY=$$(head -c 32 /dev/urandom | base64 | tr '+/' '-_')"; } > .env.new; \
	mv .env.new .env; echo "wrote .env. Next: docker compose up --build --detach"

.PHONY: clean
clean: down ## Stop, and remove .venv and caches (databases, logs and data stay)
	@rm -rf .venv build .pytest_cache .hypothesis
	@find plugins dags spark_jobs tests benchmarks sql -name __pycache__ -type d -prune \
		-exec rm -rf {} +

.PHONY: reset
reset: down ## Stop, and forget the local databases, logs and the demo's files: week 1 comes next
	@home=$$(sed -nE 's/^ *"postgres_home": "(.*)".*/\1/p' .semel/stack.json 2>/dev/null); \
	case "$$home" in /var/lib/semel-*) rm -rf "$$home" ;; esac; \
	rm -rf .semel data/flights data/out/flights data/out/_semel/flights data/_semel/flights_by_day \
		data/_semel/delays_by_airport \
		data/out/flights_by_date data/out/_semel/flights_by_date data/_semel/flights_live \
		data/out/flights_queue data/out/_semel/flights_queue data/spool/flights_queue \
		dags/pipelines/flights_by_date.yaml dags/pipelines/flights_live.yaml \
		data/_semel/flights_lake dags/pipelines/flights_queue.yaml dags/pipelines/flights_lake.yaml

# Says in one line all that is missing, and how to get it on Debian 12.
.PHONY: check
check:
	@missing=(); packages=(); \
	if [ -z "$(PYTHON)" ]; then \
		missing+=("Python $(PYTHON_MIN) or newer"); packages+=(python3 python3-venv); \
	elif ! "$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null; then \
		missing+=("the venv module of $(PYTHON)"); packages+=(python3-venv); \
	fi; \
	if [ "$${#missing[@]}" -gt 0 ]; then \
		names=$$(printf ', %s' "$${missing[@]}"); \
		echo "Missing: $${names:2}. On Debian 12: sudo apt-get install -y $${packages[*]}"; \
		exit 1; \
	fi

# Made again only when what it is made from changes: these files, this folder, the Python.
# The egg-info that the install leaves beside the library would be a second plugin to Airflow.
.PHONY: venv
venv: check
	@made_from() { pwd; "$(PYTHON)" -VV; cat pyproject.toml plugins/semel_local/pyproject.toml constraints.txt; }; \
	if made_from | cmp -s - .venv/.made-from; then exit 0; fi; \
	set -e -o pipefail; \
	if [ -f .venv/.made-from ] && [ -x .venv/bin/semel ]; then .venv/bin/semel down || true; fi; \
	echo "Installing into .venv from constraints.txt; this takes two or three minutes."; \
	"$(PYTHON)" -m venv --clear .venv; \
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv; \
	.venv/bin/python -m uv pip install --python .venv/bin/python --compile-bytecode \
		-c constraints.txt -e plugins/semel_local \
		-e '.[airflow,spark,postgres,kafka,avro,sqs,pubsub,bigquery,nats,objects,delta,openlineage,test]' \
		2>&1 | grep --line-buffered -v '^ [-+~] '; \
	made_from > .venv/.made-from
	@rm -rf plugins/*.egg-info plugins/semel_local/*.egg-info
