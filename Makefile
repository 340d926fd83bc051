# What there is to type. "make" alone lists it.

GOLANGCI := 2.15.0
# The longest first, so that it does not run alone at the end.
PKG      ?= ./internal/relay ./internal/cli ./...
ARGS     ?=
# Tests under virtual time, without Postgres. The race detector sees them at small numbers or not at all; at full numbers
# they run without it, once, and not again for each version of Postgres.
VIRTUAL     := ^Test(Lane|Model|SmallScope)_
VIRTUAL_PKG := $(if $(filter ./...,$(PKG)),./internal/relay ./internal/lane,$(filter ./internal/relay ./internal/lane,$(PKG)))
VERSIONS ?= 14 15 16 17 18

# Tests make their servers in memory where there is enough of it; the soak stays on the disk, for its large tables.
test test-versions test-outside race: export WALPOST_TEST_PG_DIR ?= $(shell sh scripts/memory-dir.sh)

.DEFAULT_GOAL := help
.PHONY: help build demo example test test-versions test-docker test-outside test-pooler race soak golden release vuln lint fmt check up down

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

build: ## The static binary, bin/walpost
	CGO_ENABLED=0 go build -trimpath -o bin/walpost ./cmd/walpost

demo: ## Postgres, API, relay and traffic in one process; ARGS="--rate 10" and the like
	@sh scripts/ensure-postgres.sh
	@go build -o bin/walpost ./cmd/walpost
	@exec bin/walpost demo $(ARGS)

example: ## One of deploy/examples, from its start to its stop: NAME=debezium, game, lessons, messages, payments or thoughts
	@sh scripts/ensure-postgres.sh
	@go build -o bin/walpost ./cmd/walpost
	@go run ./scripts/example bin/walpost "$(NAME)"

test: ## Every test against a real Postgres with the race detector, some ten minutes on two cores; PKG=./internal/lane for one package
	@sh scripts/ensure-postgres.sh
	@go vet $(PKG)
	@go run ./scripts/gotest -race -timeout 40m -p $$(($$(getconf _NPROCESSORS_ONLN) + 1)) $(PKG)
	@$(if $(VIRTUAL_PKG),go run ./scripts/gotest -run '$(VIRTUAL)' -timeout 15m $(VIRTUAL_PKG))
	@$(if $(filter ./...,$(PKG)),go run ./scripts/gotest -C deploy/check ./...)

test-versions: ## Every test that needs Postgres on each supported version, without -race; VERSIONS="14 18" for some, PKG for one package
	@PKG="$(PKG)" SKIP='$(VIRTUAL)' ARGS="$(ARGS)" sh scripts/test-versions.sh $(VERSIONS)

test-docker: ## The tests that need Docker
	go test -tags docker -run Container -timeout 10m ./internal/testdb

test-outside: ## The tests that need what others make (PgBouncer, libfaketime, Node, Kafka, Debezium, Chromium, a server that is too old), or build a copy of the program
	@sh scripts/ensure-postgres.sh
	@go run ./scripts/gotest -tags outside -run Outside -timeout 20m ./internal/doctor ./internal/docs ./internal/sink/kafka ./internal/examples

test-pooler: ## Of these the one that needs PgBouncer alone, which must be in PATH
	@sh scripts/ensure-postgres.sh
	@go run ./scripts/gotest -tags outside -run Outside_PgBouncer -timeout 5m ./internal/doctor

race: ## The tests five times in random order, for races that seldom show; PKG=./internal/lane for one package
	@sh scripts/ensure-postgres.sh
	go test -race -count=5 -shuffle=on -timeout 30m $(PKG)

soak: ## The long tests at full numbers (up to 2 hours); AREA=lead for one area (scripts/soak-areas.txt), WALPOST_ROUNDS=3 for a short run
	@sh scripts/ensure-postgres.sh
ifdef AREA
	@sh scripts/soak.sh $(AREA)
else
	@go run ./scripts/gotest -tags soak -run Soak -timeout 2h $(PKG)
endif

golden: ## Record the golden files of pgoutput again, from a real server
	@sh scripts/ensure-postgres.sh
	go test -count=1 ./internal/pgoutput -update

release: ## What a release consists of, in dist: built twice and compared; VERSION=1.2.3, else what git describes
	@go run ./scripts/release -version "$(VERSION)"

vuln: ## Known weaknesses of what is linked (govulncheck), where its database can be reached
	@sh scripts/vuln.sh

lint: ## gofmt, go mod tidy, go vet, golangci-lint
	@unformatted=$$(gofmt -l cmd deploy internal migrations scripts); \
	if [ -n "$$unformatted" ]; then echo "not formatted, make fmt does it: $$unformatted" >&2; exit 1; fi
	@go mod tidy -diff && go -C deploy/check mod tidy -diff
	@go vet -tags soak,docker,outside ./... && go -C deploy/check vet ./...
	@if golangci-lint version 2>/dev/null | grep -q " version $(GOLANGCI) "; then golangci-lint run; \
	else go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI) run; fi

fmt: ## Format the code
	gofmt -w cmd deploy internal migrations scripts

check: lint test ## What a change must pass: lint and test

up: ## The whole system in containers: Postgres, API, relay, Prometheus, Grafana, a mail catcher
	docker compose up --build --detach --wait
	@echo "API          http://127.0.0.1:8080/docs"
	@echo "relay        http://127.0.0.1:8081/ready"
	@echo "Prometheus   http://127.0.0.1:9090"
	@echo "Grafana      http://127.0.0.1:3000"
	@echo "mail         http://127.0.0.1:8025"

down: ## Stop the containers and forget their data
	docker compose down --volumes --remove-orphans
