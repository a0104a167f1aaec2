# Needs make and Python 3.11 or newer; everything else goes into .venv. "make" alone lists what there is.
.DEFAULT_GOAL := help
.PHONY: help setup fast run demo cluster-demo celery-demo test test-amqp-peers test-all test-compiled test-spark-slow test-browser pictures spark-demo simulate simulate-workers simulate-cluster model chaos soak fuzz bench profile bench-peers bench-compare bench-replicated torture torture-cluster check lint types imports docs site audit dist coverage clean

BIN := .venv/bin
READY := .venv/.stamp
# What pip installs: the wheel, compiled where a C compiler is. run, bench and bench-peers use it, and no build tool is in it: pip
# builds in an environment that it removes (ADR 0095). Everything else is the source as it is, an editable installation.
RUN := .venv-run
WHEELS := build/wheel
PACKAGED := $(shell find toymq_py clients chaos -type f -not -name '*.pyc')
# The times in a wheel, so that make run and make dist build the same bytes from a commit.
TIMES = $(addprefix SOURCE_DATE_EPOCH=,$(shell git log -1 --format=%ct 2>/dev/null))
PIP := -m pip --disable-pip-version-check --quiet
EDITABLE = TOYMQ_MYPYC=0 $(1)/bin/python $(PIP) install --editable
# What a target waits for, and no more: demo the broker's source, cluster-demo the gateway, too, run the wheel and the gateway,
# others the developer's tools; tests and types Spark (400 MB), and a Java for it.
CORE := .venv/.stamp-core
SERVING := .venv/.stamp-http
RUNNABLE := $(RUN)/.stamp-run
TESTABLE := .venv/.stamp-tests
# 3.11 first: 3.12 and 3.13 cost 10 to 19 % more CPU here. A name on PATH may be a pyenv shim that does not run: each is
# tried.
PYTHON = $(shell for p in python3.11 python3.14 python3.13 python3.12 python3; do \
  $$p -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the developer tools; again when pyproject.toml changes

%/.stamp-core: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv and ensurepip on PATH" >&2; exit 1; }
	$(PYTHON) -m venv $*
	$(call EDITABLE,$*) .
	@touch $@

%/.stamp-http: %/.stamp-core
	$(call EDITABLE,$*) '.[http]'
	@touch $@

%/.stamp: %/.stamp-core
	$(call EDITABLE,$*) '.[dev]'
	@touch $@

fast: $(RUNNABLE) ## install what run and bench use: the wheel, compiled where a C compiler is (1.5 to 2 minutes on two quiet cores)

$(RUN)/.stamp-run: pyproject.toml hatch_build.py $(PACKAGED)
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv and ensurepip on PATH" >&2; exit 1; }
	@echo "toymq: building and installing the wheel; with a C compiler that takes 1.5 to 2 minutes on two quiet cores, several on busy ones, once until the source changes"
	@rm -rf $(RUN) $(WHEELS)
	@$(PYTHON) -m venv $(RUN)
	@$(TIMES) $(RUN)/bin/python $(PIP) wheel --no-deps --wheel-dir $(WHEELS) . & pid=$$!; \
	  while kill -0 $$pid 2>/dev/null; do printf . >&2; sleep 2; done; echo >&2; wait $$pid
	@$(RUN)/bin/python $(PIP) install "$$(echo $(WHEELS)/*.whl)[http,tui]"
	@touch $@

$(RUN)/.stamp-bench: $(RUN)/.stamp-run
	$(RUN)/bin/python $(PIP) install "$$(echo $(WHEELS)/*.whl)[http,tui,bench,plots]"
	@touch $@

%/.stamp-tests: %/.stamp
	$(call EDITABLE,$*) '.[dev,spark,tables]'
	@$*/bin/python -c 'import os, toymq_spark.java as java; java.ensure_java(os.environ)' 2>/dev/null \
	  || $(call EDITABLE,$*) '.[java]'
	@touch $@

run: LISTEN := $(or $(LISTEN),127.0.0.1:6789)
run: HTTP := $(or $(HTTP),127.0.0.1:7800)
run: DATA_DIR := $(or $(DATA_DIR),./data)
run: $(RUNNABLE) ## start a broker, with LISTEN=127.0.0.1:6789, its dashboard HTTP=127.0.0.1:7800 and DATA_DIR=./data, or others
	@echo "toymq: LISTEN=, HTTP= and DATA_DIR= start it elsewhere. When it is ready, in a second terminal: $(RUN)/bin/toymqctl$(if $(filter 127.0.0.1:6789,$(LISTEN)),, --url $(LISTEN)) pub orders hello"
	$(RUN)/bin/toymq serve --data-dir '$(DATA_DIR)' --listen '$(LISTEN)' --http '$(HTTP)'

demo: $(CORE) ## publish a file, kill the broker twice, compare what comes out: make demo FILE=README.md
	$(BIN)/toymq demo --file "$(or $(FILE),README.md)"

cluster-demo: $(SERVING) ## run three nodes and etcd here, kill the leader twice, cut a follower off, count what was lost
	$(BIN)/python -m tests.cluster_demo

celery-demo: $(READY) ## run 10,000 Celery tasks, kill -9 broker and workers in turn, count what was done
	$(BIN)/python -m tests.celery_demo

# Bytecode is kept, whatever the environment says: each of some hundred processes would compile the sources again. Five workers
# for two cores: four left them idle for a quarter of the time, as tests of processes wait (ADR 0134). The first run keeps an
# archive of Spark's classes for the next ones (ADR 0214).
test: $(TESTABLE) ## run the test suite, on two cores; of long runs a short form (make torture, make test-spark-slow: the long one)
	PYTHONDONTWRITEBYTECODE= $(if $(CI),,TOYMQ_KEEP_CLASSES=1) $(BIN)/python -m pytest --numprocesses 5 --dist loadfile --no-loadscope-reorder

test-all: ## run the tests on every Python from 3.11 to 3.14 that is installed; name the missing ones
	@missing=; failed=; for v in 3.11 3.12 3.13 3.14; do found=; \
	  for p in python$$v $$HOME/.pyenv/versions/$$v*/bin/python; do \
	    $$p -c "import sys, ensurepip, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$$v')" 2>/dev/null \
	      && { found=$$p; break; }; done; \
	  if [ -z "$$found" ]; then missing="$$missing $$v"; continue; fi; echo "== Python $$v"; \
	  $(MAKE) --no-print-directory .venv-$$v/.stamp-tests PYTHON="$$found" && .venv-$$v/bin/python -m pytest \
	    || failed="$$failed $$v"; \
	done; echo "failed:$${failed:- none}; not on this machine:$${missing:- none}"; [ -z "$$failed" ]

# The wheel comes first on the path, then the packages of .venv: no source of ours is beside the tests.
test-compiled: $(TESTABLE) ## run the end-to-end tests against the compiled wheel: make test-compiled TESTS=tests/e2e/amqp
	rm -rf build/compiled && mkdir -p build/compiled
	$(BIN)/python -m venv build/compiled/.venv
	build/compiled/.venv/bin/python $(PIP) install --no-deps .
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(build/compiled/.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-tools.pth"
	cp -r tests docs adr deploy Makefile *.md *.toml *.py LICENSE build/compiled/
	cd build/compiled && env -u PYTHONPATH .venv/bin/python -m pytest --numprocesses 3 --dist loadfile $(or $(TESTS),tests/e2e)

test-amqp-peers: $(READY) ## run the suites of py-amqp and kombu against a broker here; pika's, too: PIKA=DIR; or tutorials: TUTORIALS=DIR
	$(BIN)/python -m tests.amqp_peers $(if $(PIKA),--pika $(PIKA)) $(addprefix --tutorials ,$(TUTORIALS))

test-spark-slow: $(TESTABLE) ## run the other Spark tests: jobs, buckets, tables, kills, a cluster, millions of rows
	$(BIN)/python -m pytest -m spark_slow

test-browser: $(READY) ## run the dashboard's tests in this machine's Chromium
	@$(call EDITABLE,.venv) '.[browser]'
	TOYMQ_REQUIRE=chromium,playwright,axe $(BIN)/python -m pytest -m browser tests/e2e

pictures: $(READY) ## make the pictures of the dashboard and of toymqctl top anew, in this machine's Chromium
	@$(call EDITABLE,.venv) '.[browser]'
	TOYMQ_REQUIRE=chromium,playwright TOYMQ_PICTURES=docs/images $(BIN)/python -m pytest tests/e2e/test_dashboard_pictures.py tests/unit/ctl/top/test_top_picture.py

spark-demo: $(TESTABLE) ## publish data, archive it with Spark, kill both in the middle, resume, replay, verify
	$(BIN)/toymq-pipeline demo

simulate: $(READY) ## run simulated worlds with crashes and power cuts: make simulate SEEDS=5000 FROM=0
	$(BIN)/python -m tests.simulation --seeds "$(or $(SEEDS),1000)" --from "$(or $(FROM),0)"

simulate-workers: $(READY) ## run simulated brokers of several processes, each killed on its own: make simulate-workers SEEDS=2000 FROM=0
	$(BIN)/python -m tests.simulation --workers --seeds "$(or $(SEEDS),500)" --from "$(or $(FROM),0)"

simulate-cluster: $(READY) ## run simulated clusters, shrink the plan of one that fails: make simulate-cluster SEEDS=5000 FROM=0 JOBS=2
	$(BIN)/python -m tests.simulation --cluster --seeds "$(or $(SEEDS),1000)" --from "$(or $(FROM),0)" --jobs "$(or $(JOBS),2)" \
	  $(if $(WITHOUT),--without $(WITHOUT))

model: $(READY) ## search the replication protocol for a lost message: make model MODEL="--nodes 3 --records 1" (default: all)
	$(if $(MODEL),$(BIN)/python -m tests.model $(MODEL),$(BIN)/python -m tests.model --rules && $(BIN)/python -m tests.model --long)

chaos: $(READY) ## break a running broker, then check what its clients saw: make chaos DURATION=90s SEED=1 WORKERS=2
	$(BIN)/toymq-chaos run --duration "$(or $(DURATION),90s)" $(if $(SEED),--seed $(SEED)) $(if $(WORKERS),--workers $(WORKERS)) \
	  $(if $(OUT),--out $(OUT))

soak: $(READY) ## hours of load, then check that memory, descriptors and disk return: make soak HOURS=0.5 OUT=DIR
	$(BIN)/toymq-chaos soak --duration "$$(awk 'BEGIN { printf "%.0f", 3600 * $(or $(HOURS),1) }')s" \
	  $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(OUT))

fuzz: $(READY) ## search inputs that break a parser or recovery: make fuzz TARGET=parser|client|recovery|files SECONDS=60
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(call EDITABLE,.venv) \
	  '.[fuzz]' --only-binary atheris 2>/dev/null || true
	$(BIN)/python -m tests.fuzz "$(or $(TARGET),parser)" --seconds "$(or $(SECONDS),60)"

bench: $(RUN)/.stamp-bench ## measure every goal: make bench MESSAGES=10000000 (default a million) BENCH="--json FILE --plot FILE"
	$(RUN)/bin/toymq-bench goals --messages "$(or $(MESSAGES),1000000)" $(BENCH)

profile: $(READY) ## draw a flame graph, list the ten hottest lines: make profile BENCH="--producers 64 --window 1"
	@$(call EDITABLE,.venv) '.[profile]'
	$(BIN)/toymq-bench profile $(BENCH)

bench-peers: $(RUN)/.stamp-bench ## measure other installed brokers beside toymq: make bench-peers BENCH="--strace --json FILE"
	$(RUN)/bin/toymq-bench peers $(BENCH)

bench-replicated: $(READY) ## measure a pair beside a single node, and a resync: make bench-replicated BENCH="--runs 3 --resync-mb 100"
	$(BIN)/python -m tests.cluster_bench $(BENCH)

bench-compare: $(READY) ## compare CPU per message with another commit: make bench-compare BASE=ref
	$(BIN)/toymq-bench commits --base "$(or $(BASE),HEAD~1)" $(BENCH)

torture: $(TESTABLE) ## run the tests that take minutes each, and every example of the property tests
	@$(BIN)/python -c "import schemathesis" 2>/dev/null || $(call EDITABLE,.venv) \
	  '.[fuzz-http]' || true
	TOYMQ_HYPOTHESIS=full $(BIN)/python -m pytest -m "hypothesis and not torture and not spark_slow" --numprocesses 2
	$(BIN)/python -m pytest -m torture --numprocesses 2

torture-cluster: $(READY) ## fail over a cluster on machines in namespaces, as root: make torture-cluster FAILOVERS=1000 TORTURE="--done 400 --round 30"
	$(BIN)/python -m tests.cluster_torture --failovers "$(or $(FAILOVERS),1000)" $(TORTURE)

check: lint types imports test ## run what must pass before a change lands: lint, types, imports, test

lint: $(READY) ## check style and common mistakes (ruff)
	$(BIN)/ruff check

types: $(TESTABLE) ## check types (mypy, strict), and what mypyc would refuse to compile
	$(BIN)/mypy
	@said=$$($(BIN)/python hatch_build.py --check 2>&1) || { echo "$$said" >&2; exit 1; }

imports: $(READY) ## check the layers (import-linter)
	$(BIN)/lint-imports --no-cache --no-logo

docs: $(READY) ## update the tables in docs that come from the code
	$(BIN)/python -m tests.packaging.configuration_page
	$(BIN)/python -m tests.packaging.metrics_page

site: $(READY) ## build the documentation as a site, build/site/index.html; fails on a broken link
	@test -x $(BIN)/zensical || $(call EDITABLE,.venv) '.[site]'
	$(BIN)/python -m tests.packaging.site build/site-pages
	$(BIN)/zensical build --strict

audit: $(READY) ## list known vulnerabilities of the installed packages; fails without an answer from PyPI
	@test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && \
	  .venv-audit/bin/python $(PIP) install 'pip-audit>=2.7'; }
	$(BIN)/python -m pip freeze --exclude-editable >.venv-audit/installed.txt
	@rm -f .venv-audit/found.json
	@.venv-audit/bin/pip-audit --disable-pip --no-deps --progress-spinner off --requirement .venv-audit/installed.txt \
	  --format json --output .venv-audit/found.json >.venv-audit/log 2>&1 || true
	@$(BIN)/python -m tests.packaging.audit .venv-audit/found.json .venv-audit/log

dist: $(READY) ## build wheel and sdist of the commit into dist, reproducibly; TOYMQ_MYPYC=0: a wheel without compiled modules
	@test -z "$$(git status --porcelain)" || { echo "make dist: there are changes that are not committed" >&2; exit 1; }
	rm -rf dist
	$(TIMES) TOYMQ_MYPYC=$${TOYMQ_MYPYC:-1} $(BIN)/python -m hatchling build
	cd dist && sha256sum *

coverage: $(TESTABLE) ## run the tests, show the lines and branches that none reached
	$(BIN)/coverage run -m pytest && $(BIN)/coverage combine --quiet && $(BIN)/coverage report

clean: ## remove the virtual environments and all caches, not ./data
	rm -rf .venv .venv-3.* .venv-run .venv-audit .cache .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
