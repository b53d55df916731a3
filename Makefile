# All commands that a person or a CI needs. `make help` lists them.
#
# The whole program is always at target/release/covey, that of `make run` at target/quick/covey. Compiled files
# go to COVEY_BUILD_DIR. Its default is the folder that CARGO_TARGET_DIR names, otherwise ~/.cache/covey/build
# if it exists (CI creates it, so that a rerun is fast), otherwise target.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

cache := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/covey
COVEY_BUILD_DIR ?= $(or $(CARGO_TARGET_DIR),$(wildcard $(cache)/build),$(CURDIR)/target)
export CARGO_TARGET_DIR := $(abspath $(COVEY_BUILD_DIR))
program := target/release/covey
# The first program, which `make run` uses. It lacks what `make run` does not need.
quick := target/quick/covey
CARGO := scripts/with-rust cargo

##@ Use

.PHONY: build
build: ## Build the program: target/release/covey, with its debug information in covey.debug beside it
	@scripts/bootstrap build
	$(CARGO) build --release --package covey-cli --bin covey
	@scripts/split-debug "$(CARGO_TARGET_DIR)/release/covey" $(program)

.PHONY: run
run: quick ## Format a volume, mount it and do real work on it; ONCE=1 ends instead of waiting for Ctrl-C
	@COVEY="$(CURDIR)/$(quick)" scripts/keep-switch scripts/demo

.PHONY: quick
quick: ## Build the first program, in some minutes and without parts such as S3, guests and Kubernetes: target/quick/covey
	@scripts/bootstrap run
	@scripts/build-quick "$(CURDIR)/$(quick)"

.PHONY: run-fleet
run-fleet: ## An S3 store, a depot and four nodes in network namespaces: where each byte comes from, live; needs root
	@scripts/bootstrap run-fleet
	@$(MAKE) build
	@$(CARGO) build --package covey-nets --bin run-fleet
	@COVEY_BIN="$(CURDIR)/$(program)" scripts/keep-switch "$(CARGO_TARGET_DIR)/debug/run-fleet"

# The notebooks, the store, the volume with synthetic data. LAB_ARGS="--days 250 --rows 20000 --port 8888".
# LAB_ARGS="--dashboard 127.0.0.1:9879" lets `covey ui --lab URL` show it.
lab = "$(cache)/lab/bin/python" scripts/lab --covey "$(program)" --bench "$(CARGO_TARGET_DIR)/release/covey-bench" \
	--store "$(CARGO_TARGET_DIR)/release/examples/serve-s3"

.PHONY: lab
lab: lab-build ## JupyterLab with notebooks on a mounted volume of synthetic market data, until Ctrl-C; LAB_ARGS="--days 250"
	@scripts/keep-switch $(lab) $(LAB_ARGS)

.PHONY: lab-build
lab-build: build wheel
	@scripts/bootstrap lab
	$(CARGO) build --release --package covey-bench --bin covey-bench
	$(CARGO) build --release --package covey-s3 --example serve-s3
	@scripts/python-venv "$(cache)/lab" jupyterlab nbclient ipykernel fsspec numpy pandas matplotlib safetensors boto3
	@scripts/python-wheel "$(cache)/lab" target/wheels

##@ Pack

.PHONY: man
man: build ## Manual pages and shell completions, from the help's own table: target/man, target/completions
	@$(program) generate man target/man
	@$(program) generate completions target/completions

.PHONY: attach
attach: ## covey-attach for guests, one static file: target/covey-attach
	@scripts/bootstrap build
	@scripts/with-rust scripts/make-attach target/covey-attach

.PHONY: deb
deb: build ## A Debian package: target/debian/covey_VERSION_ARCHITECTURE.deb
	@scripts/bootstrap deb
	@scripts/make-deb $(program)

.PHONY: test-deb
test-deb: deb ## Install it in a clean root, mount there, purge it; needs root and debootstrap
	@scripts/keep-switch scripts/test-deb target/debian/covey_*.deb

.PHONY: wheel
wheel: ## The Python package coveyfs: target/wheels; needs Python 3.11 or newer, no headers of it
	@scripts/bootstrap wheel
	@scripts/python-venv "$(cache)/python-tools" maturin
	@scripts/with-rust "$(cache)/python-tools/bin/maturin" build --release --locked \
		--manifest-path "$(CURDIR)/sdk/python/Cargo.toml" --out "$(CURDIR)/target/wheels"

##@ Check

.PHONY: test
test: check-fast ## Format, lints, licences and every test that needs no other program: what CI runs
	@scripts/with-rust scripts/run-tests

.PHONY: check-fast
check-fast: ## What most often refuses a change: format, the rules of the repository, clippy; some seconds if little changed
	@scripts/bootstrap test
	$(CARGO) fmt --all --check
	$(CARGO) test --quiet --locked --package covey-house
	@$(MAKE) lint

.PHONY: slowest
slowest: ## Every test, then the time of each test program and of the slowest tests
	@scripts/bootstrap test
	scripts/with-rust scripts/run-tests --slowest

.PHONY: timings
timings: ## Build the whole program anew in a folder of its own, then where the time went: crates, codegen, linking
	@scripts/bootstrap build
	@scripts/with-rust scripts/timings $(TIMINGS_ARGS)

# Warnings are errors with the compiler of rust-toolchain.toml. A newer compiler has newer lints, so it only
# shows them.
pinned := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
strict = $(if $(findstring rustc $(pinned) ,$(shell scripts/with-rust --check)),-D warnings,)

# One pass for what ships and for the tests. Tests may unwrap, read clocks and start threads: the root of each
# crate says so.
.PHONY: lint
lint: ## rustfmt and clippy as errors; then the first program, which has fewer parts
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --locked --all-targets -- $(strict)
	$(CARGO) check --quiet --locked --package covey-cli --no-default-features --bin covey

.PHONY: ui-assets
ui-assets: ## Build the page of the dashboard anew, from crates/ui/web; needs npm
	@scripts/ui-assets "$(cache)/ui-assets"

.PHONY: bpf
bpf: ## Compile the eBPF programs of crates/watch anew; needs clang, llvm and libbpf-dev
	@scripts/bpf

.PHONY: fmt
fmt: ## Format every source file
	$(CARGO) fmt --all

.PHONY: deny
deny: ## Licences, sources and bans of deny.toml, by cargo-deny (built once if missing: some minutes)
	@tool=$$(command -v cargo-deny || true); \
	[ -n "$$tool" ] || tool="$(cache)/tools/bin/cargo-deny"; \
	[ -x "$$tool" ] || CARGO_TARGET_DIR="$(cache)/tools/build" $(CARGO) install --locked --root "$(cache)/tools" cargo-deny; \
	scripts/with-rust "$$tool" check bans licenses sources

##@ Check at length

# Whole-program tests run against the release build. The long ones are marked `ignored` in the sources, so
# that `make test` skips them. $(1): a program of covey-tests; $(2): tests, as a regular expression of names.
at_length = COVEY_BIN="$(CURDIR)/$(program)" scripts/with-rust scripts/run-tests --profile long --run-ignored all \
	--no-capture --package covey-tests -E 'binary($(1)) & test(/$(or $(2),.)/)'

.PHONY: fuzz
fuzz: ## Every decoder under libFuzzer, FUZZ_SECONDS each (60); TARGETS="gossip sums" for some of them; needs g++
	@scripts/fuzz $(TARGETS)

.PHONY: test-crash
test-crash: build ## 200 rounds of kill -9 at random points, power cuts, and the log cut at every record
	$(CARGO) test --package covey-meta --test names -- --include-ignored journal_crash:: journal_kill::
	$(call at_length,mounts,^crash::)

.PHONY: test-upload
test-upload: build ## 100 rounds of kill -9 while uploads are under way to an S3 server that throttles and cuts
	$(call at_length,mounts,^upload::)

.PHONY: test-shared
test-shared: build ## Shared volumes: histories of names under faults, ROUNDS=300 of each kind, PARTITIONS=10; needs root; SEED=N
	@scripts/bootstrap test
	COVEY_ROUNDS="$(or $(ROUNDS),300)" $(if $(SEED),COVEY_SEED="$(SEED)") $(call at_length,shared)
	COVEY_ROUNDS="$(or $(ROUNDS),300)" $(if $(SEED),COVEY_SEED="$(SEED)") $(call at_length,services,^guests::)
	COVEY_ROUNDS="$(or $(PARTITIONS),10)" $(if $(SEED),COVEY_SEED="$(SEED)") COVEY_BIN="$(CURDIR)/$(program)" \
		$(CARGO) test --package covey-nets --test fleets -- shared::

.PHONY: test-shared-faults
test-shared-faults: build ## Shared volumes under random faults, half of the time on each database; FAULTS_SECONDS=1800 FAULTS_SEED=N FAULTS_ONLY=lag; needs root
	@scripts/bootstrap test
	COVEY_FAULTS_SECONDS="$$(($(or $(FAULTS_SECONDS),1800) / 2))" COVEY_FAULTS_SEED="$(FAULTS_SEED)" \
		COVEY_FAULTS_ONLY="$(FAULTS_ONLY)" \
		$(call at_length,shared,^random::faults_at_length_)

.PHONY: test-on-shared
test-on-shared: build ## The suites of one machine on a shared volume that a second node reads all the while; PJDFSTEST=path; needs root
	@scripts/bootstrap test
	@$(if $(PJDFSTEST),[ -x "$(PJDFSTEST)" ] || { echo "make test-on-shared: PJDFSTEST= must name the program" >&2; exit 2; })
	$(if $(PJDFSTEST),PJDFSTEST="$(abspath $(PJDFSTEST))") scripts/keep-switch scripts/on-shared "$(program)" \
		$(CARGO) test --package covey-tests --test mounts -- --include-ignored --skip long_ --test-threads 1 \
		posix:: fsx:: differential:: semantics:: suites::

.PHONY: test-nfs
test-nfs: build ## A mount that NFS-Ganesha exports again, and file handles; needs root, nfs-ganesha-vfs, libnfs-utils and iproute2
	$(call at_length,mounts,^handles::)

.PHONY: test-fleet
test-fleet: build ## Fleets in network namespaces: each fault alone, then ROUNDS=1000 random ones; needs root; SEED=N
	@scripts/bootstrap test-fleet
	COVEY_BIN="$(CURDIR)/$(program)" COVEY_FLEET_ROUNDS="$(ROUNDS)" COVEY_FLEET_SEED="$(SEED)" \
		$(CARGO) test --package covey-nets -- --include-ignored --nocapture --test-threads 1

.PHONY: test-containers
test-containers: build ## Images with the programs people use: containerd, podman, runc, registries; installs 140 MB; needs root
	@scripts/bootstrap test-containers
	COVEY_BIN="$(CURDIR)/$(program)" scripts/keep-switch $(CARGO) test --package covey-tests --test services -- images::

# Settings: tests/vm/src/kit.rs. The guests' kernel and their devices are put in the cache; nothing is installed.
guest_kit = COVEY_GUEST_KIT="$(or $(COVEY_GUEST_KIT),$(cache)/guests)" COVEY_BIN="$(CURDIR)/$(program)" \
	COVEY_ATTACH="$(CURDIR)/target/covey-attach" COVEY_IN_GUEST="$(CARGO_TARGET_DIR)/in-guest"

.PHONY: guest-kit
guest-kit: build attach
	@scripts/bootstrap guests
	@scripts/guest-kit "$(or $(COVEY_GUEST_KIT),$(cache)/guests)"
	@scripts/with-rust scripts/make-attach "$(CARGO_TARGET_DIR)/in-guest" covey-vms in-guest

.PHONY: test-guests
test-guests: guest-kit ## Linux guests in QEMU attach over vsock: sums, git, builds, kills, nesting; PJDFSTEST=path; needs root
	$(guest_kit) $(if $(PJDFSTEST),PJDFSTEST="$(abspath $(PJDFSTEST))") $(CARGO) test --package covey-vms --test machines -- \
		--include-ignored --nocapture --test-threads 1

.PHONY: test-posix
test-posix: build ## Differential runs against a plain folder, random I/O with mmap, and go-fuse's posixtest
	$(call at_length,mounts,^(differential|fsx|suites::posixtest)::)

.PHONY: test-pjdfstest
test-pjdfstest: build ## pjdfstest; PJDFSTEST=path of its program
	@[ -x "$(PJDFSTEST)" ] || { echo "make test-pjdfstest: PJDFSTEST= must name the program (pjdfstest's rust/ folder, built)" >&2; exit 2; }
	PJDFSTEST="$(abspath $(PJDFSTEST))" $(call at_length,mounts,^suites::pjdfstest::)

# The suite of the specification, helm, and a decoder of manifests. They are Go programs under other licences,
# so they are built outside the repository and never shipped.
csi_tools := $(cache)/csi-tools
.PHONY: csi-tools
csi-tools: ## Build what test-csi uses, csi-sanity, helm and a strict decoder of manifests; needs go and a module proxy
	@mkdir -p "$(csi_tools)"
	GOBIN="$(csi_tools)" go install github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0
	GOBIN="$(csi_tools)" go install helm.sh/helm/v3/cmd/helm@v3.22.0
	@rm -rf "$(csi_tools)/strict" && cp -r tests/services/csi/strict "$(csi_tools)/strict"
	cd "$(csi_tools)/strict" && GOFLAGS=-mod=mod go mod tidy && go build -o ../kube-strict .

csi_tool = $(1)="$(or $($(1)),$(wildcard $(csi_tools)/$(2)))"
.PHONY: test-csi
test-csi: build ## The CSI driver, with csi-sanity, helm and the types of Kubernetes: make csi-tools, or CSI_SANITY= HELM= KUBE_STRICT=; needs root
	@scripts/bootstrap test
	$(call csi_tool,CSI_SANITY,csi-sanity) $(call csi_tool,HELM,helm) $(call csi_tool,KUBE_STRICT,kube-strict) \
		scripts/keep-switch env $(call at_length,services,^csi::)

.PHONY: test-xfstests
test-xfstests: build ## xfstests; XFSTESTS=path of its built tree, XFSTESTS_ARGS="-g quick"
	@[ -x "$(XFSTESTS)/check" ] || { echo "make test-xfstests: XFSTESTS= must name the folder of a built xfstests" >&2; exit 2; }
	XFSTESTS="$(abspath $(XFSTESTS))" $(call at_length,mounts,^suites::xfstests::)

# Packages are installed into a venv in the cache. TESTS= are arguments of pytest, such as TESTS="-k zarr".
.PHONY: test-python
test-python: build wheel ## The Python package with pandas, pyarrow, dask, zarr and others, against real volumes and a store
	@scripts/bootstrap test-python
	$(CARGO) build --package covey-s3 --example serve-s3
	@scripts/keep-switch scripts/test-python $(program) "$(CARGO_TARGET_DIR)/debug/examples/serve-s3" target/wheels \
		"$(cache)/python-tests" $(TESTS)

.PHONY: test-ui
test-ui: build ## The dashboard in a real Chromium, against a real mount; PICTURES=folder for screenshots
	@scripts/bootstrap test-ui
	scripts/keep-switch scripts/test-ui "$(program)" "$(cache)/ui-tests" $(PICTURES)

# PLOTS= is a folder outside the repository.
.PHONY: test-lab
test-lab: lab-build ## Every notebook without a browser, and the lab's start and end; its plots go to PLOTS=DIR
	@scripts/keep-switch scripts/test-lab "$(or $(PLOTS),$(cache)/lab-plots)" $(lab) $(LAB_ARGS)

.PHONY: test-workloads
test-workloads: build ## Real programs through kill -9: SQLite, PostgreSQL, git, fio verify, stress-ng
	@scripts/bootstrap workloads
	$(call at_length,services,^clients::)

# MINIO= defaults to the one that `make minio` built. Without either, the tests say so and are skipped.
minio_program = $(abspath $(or $(MINIO),$(wildcard $(cache)/peers/minio)))

.PHONY: minio
minio: ## Build MinIO, an object store to test against, into the cache (some minutes, needs Go)
	@scripts/bootstrap minio

.PHONY: etcd
etcd: ## Fetch etcd, to test against, from the distribution into the cache; make test does it too. ETCD=path names another one
	@scripts/bootstrap etcd

.PHONY: test-minio
test-minio: ## The suite of origins and users' mistakes against a real MinIO on loopback; MINIO=path of its program
	MINIO="$(minio_program)" $(CARGO) test --package covey-origin -- --nocapture

.PHONY: test-s3-clients
test-s3-clients: build ## The S3 gateway with boto3, awscli, rclone, s3fs, obstore and pyarrow, from PyPI into the cache; MC=path of MinIO's client
	@scripts/bootstrap s3-clients
	MC="$(if $(MC),$(abspath $(MC)))" $(call at_length,services,^s3_gateway::)

.PHONY: test-s3tests
test-s3tests: build ## The S3 tests of Ceph against the gateway, those that must pass; S3TESTS=path of ceph/s3-tests
	@[ -f "$(S3TESTS)/s3tests/functional/test_s3.py" ] || { echo "make test-s3tests: S3TESTS= must name the folder of ceph/s3-tests" >&2; exit 2; }
	S3TESTS="$(abspath $(S3TESTS))" $(call at_length,services,^s3_gateway::suite::ceph)

# The node and the store use this machine's disk: about twice BIG and the files, plus 4 GiB. All of it is
# removed at the end.
.PHONY: test-origin
test-origin: build ## Real files and a large one through MinIO, the node lost, everything read back; FILES=50000 BIG=10G KILLS=8 FROM=/usr MINIO=path
	@[ -x "$(minio_program)" ] || scripts/bootstrap minio
	MINIO="$(or $(minio_program),$(cache)/peers/minio)" FILES="$(FILES)" BIG="$(BIG)" KILLS="$(KILLS)" FROM="$(FROM)" \
		$(call at_length,mounts,^roundtrip::)

.PHONY: test-million
test-million: build ## A million files: import, walk, find, reopen after kill -9, compared with ext4
	$(call at_length,mounts,^scale::million::)

.PHONY: test-index
test-index: build ## Indexes of buckets of others, also of a million objects: time beside that of the listing, and memory
	$(call at_length,mounts,^index::)

.PHONY: test-trees
test-trees: ## Published trees, also of a million files
	$(CARGO) test --release --package covey-tests --test mounts -- --include-ignored --nocapture trees::

.PHONY: test-memory
test-memory: build ## Peak memory through 20 GiB written and read, and disk use under random overwrites
	$(call at_length,mounts,^scale::memory::)

##@ Measure

# Figures are compared only within one run. Each target measures Covey and the systems it is compared with, in
# turns, and prints a table with its goals. It saves that with every sample and charts in
# bench/results/DATE-HOST/. The targets need root and an idle machine. BENCH_ARGS are options of the figure,
# such as BENCH_ARGS="--quick --rounds 9 --scratch /mnt/disk".
# $(1): a figure of covey-bench; $(2): its options.
figure = scripts/keep-switch "$(CARGO_TARGET_DIR)/release/covey-bench" $(1) --covey "$(program)" $(2) $(BENCH_ARGS)

.PHONY: bench-build
bench-build: build
	@scripts/bootstrap bench
	$(CARGO) build --release --package covey-bench

.PHONY: bench
bench: bench-tail bench-throughput bench-operations bench-workloads bench-peers bench-origin ## Every published figure (hours); JUICEFS=path of juicefs for the peers

.PHONY: bench-quick
bench-quick: bench-build ## The same figures at small sizes, some minutes: a quick check that everything works
	$(call figure,tail,--quick)
	$(call figure,operations,--quick)
	$(call figure,parallel,--quick)
	$(call figure,writes,--quick)
	$(call figure,metadata,--quick)

.PHONY: bench-throughput
bench-throughput: bench-build ## F2 and F4: parallel small files by transport and readers; small writes, large files
	$(call figure,parallel)
	$(call figure,writes)

.PHONY: bench-operations
bench-operations: bench-build ## F3 and F7: one operation at a time, also with the kernel's caches off; names per second
	$(call figure,operations)
	$(call figure,metadata)

.PHONY: bench-peers
bench-peers: bench-build ## F6: compared with JuiceFS and go-fuse's loopback; JUICEFS=path of juicefs
	@scripts/bootstrap bench-peers
	$(call figure,peers,$(if $(JUICEFS),--juicefs "$(JUICEFS)") $(addprefix --loopback ,$(wildcard $(cache)/peers/loopback)))

.PHONY: bench-guests
bench-guests: guest-kit ## A mount in a real guest beside virtiofsd, and the stream on the host: tables, no files; PART=host|guest; needs root
	$(CARGO) build --package covey-vms --bin bench-guests
	$(guest_kit) scripts/keep-switch "$(CARGO_TARGET_DIR)/debug/bench-guests" $(PART)

.PHONY: bench-origin
bench-origin: bench-build minio ## Over an S3 store (MinIO): compared with juicefs, rclone, s3fs; JUICEFS=path of juicefs
	@scripts/bootstrap bench-origin
	$(call figure,origin,--minio "$(or $(MINIO),$(cache)/peers/minio)" $(if $(JUICEFS),--juicefs "$(JUICEFS)"))

.PHONY: bench-s3
bench-s3: bench-build minio ## The S3 gateway beside MinIO: GET, PUT and list; MINIO=path of its program
	$(call figure,s3,--minio "$(or $(MINIO),$(cache)/peers/minio)")

# Packages are installed into a venv in the cache. MINIO= and JUICEFS= as for bench-origin.
.PHONY: bench-access
bench-access: build minio ## Small cold reads of large files: pread, mmap, numpy, HDF5, zarr, lance; time, requests, bytes; JUICEFS=path
	@scripts/bootstrap bench
	scripts/keep-switch python3 bench/access.py --covey "$(program)" --minio "$(or $(MINIO),$(cache)/peers/minio)" --venv "$(cache)/access-venv" \
		--results "bench/results/$(shell date -u +%Y-%m-%d)-access" $(if $(JUICEFS),--juicefs "$(JUICEFS)") $(BENCH_ARGS)

.PHONY: bench-read-through
bench-read-through: build minio ## An object of a bucket of others, from the gateway's disk, beside the store itself, by boto3
	@scripts/bootstrap s3-clients
	@scripts/python-venv "$(cache)/s3-clients" boto3
	"$(cache)/s3-clients/bin/python" bench/read_through.py --covey "$(program)" --minio "$(or $(MINIO),$(cache)/peers/minio)" \
		--results "bench/results/$(shell date -u +%Y-%m-%d)-read-through" $(BENCH_ARGS)

.PHONY: bench-containers
bench-containers: build minio ## The first output of a container on a cold node: pulled, from a published tree, with a list; needs root
	@scripts/bootstrap bench-containers
	scripts/keep-switch python3 bench/containers.py --covey "$(program)" --minio "$(or $(MINIO),$(cache)/peers/minio)" \
		--results "bench/results/$(shell date -u +%Y-%m-%d)-containers" $(BENCH_ARGS)

.PHONY: bench-memory
bench-memory: build ## Clones of a virtual machine's memory: covey memory-server beside mappings of the file; covey clone of an image; needs root
	@scripts/bootstrap bench
	$(CARGO) build --release --package covey-memory --example vmm
	scripts/keep-switch python3 bench/memory.py --covey "$(program)" --vmm "$(CARGO_TARGET_DIR)/release/examples/vmm" \
		--results "bench/results/$(shell date -u +%Y-%m-%d)-memory" $(BENCH_ARGS)

.PHONY: bench-heat
bench-heat: build minio ## What eBPF's view of the page cache buys for the cache, on three traces; needs root
	@scripts/bootstrap bench
	scripts/keep-switch python3 bench/heat.py --covey "$(program)" --minio "$(or $(MINIO),$(cache)/peers/minio)" \
		--results "bench/results/$(shell date -u +%Y-%m-%d)-heat" $(BENCH_ARGS)

# Packages are installed into a venv in the cache. MINIO= as for bench-origin.
.PHONY: bench-python
bench-python: build wheel minio ## From Python: one column of many Parquet files, beside s3fs and local files; weights by mmap
	@scripts/bootstrap bench
	$(CARGO) build --release --package covey-s3 --example serve-s3
	@scripts/python-venv "$(cache)/python-bench" numpy pyarrow safetensors fsspec s3fs
	@scripts/python-wheel "$(cache)/python-bench" target/wheels
	scripts/keep-switch "$(cache)/python-bench/bin/python" bench/python.py --covey "$(program)" --minio "$(or $(MINIO),$(cache)/peers/minio)" \
		--store "$(CARGO_TARGET_DIR)/release/examples/serve-s3" \
		--results "bench/results/$(shell date -u +%Y-%m-%d)-python" $(BENCH_ARGS)

# The bytes go to MINIO=, or to the one that `make minio` built; without either to a folder.
.PHONY: bench-shared
bench-shared: build ## Shared volumes: a database 0, 1 and 5 ms away, beside a volume of one node; needs root; JUICEFS=path
	@scripts/bootstrap bench-shared
	@scripts/workload-sources "$(or $(MIRRORS),$(cache)/workloads)" nginx python
	$(CARGO) build --release --package covey-s3 --example serve-s3
	scripts/keep-switch python3 bench/shared.py --covey "$(program)" --mirrors "$(or $(MIRRORS),$(cache)/workloads)" \
		--store "$(CARGO_TARGET_DIR)/release/examples/serve-s3" \
		$(if $(minio_program),--minio "$(minio_program)") $(if $(JUICEFS),--juicefs "$(JUICEFS)") \
		--results "bench/results/$(shell date -u +%Y-%m-%d)-shared" $(BENCH_ARGS)

.PHONY: bench-fleet
bench-fleet: bench-build ## P3, P4, P5, P7: nodes in network namespaces; PART=flash|scale|tiers|start for one of them
	@scripts/bootstrap bench-fleet
	@[ -n "$(filter-out start,$(PART))" ] || scripts/start-root "$(cache)/start-root"
	$(call figure,fleet $(addprefix --part ,$(PART)) --root "$(cache)/start-root")

# LOBSTER= names a folder with real files; without it the data is synthetic. MINIO= as for bench-origin.
demo_programs = --covey "$(program)" --minio "$(or $(MINIO),$(cache)/peers/minio)" --bench "$(CARGO_TARGET_DIR)/release/covey-bench"
demo = $(cache)/s3-clients/bin/python bench/demo_$(1).py $(demo_programs) $(if $(LOBSTER),--lobster "$(LOBSTER)") \
	--results "bench/results/$(shell date -u +%Y-%m-%d)-demo" $(BENCH_ARGS)

.PHONY: demo-build
demo-build: bench-build $(if $(MINIO),,minio)
	@scripts/bootstrap demo
	@scripts/python-venv "$(cache)/s3-clients" boto3

.PHONY: demo-cache
demo-cache: demo-build ## Market data read again and again: MinIO, a mount, boto3 redirected to this node; LOBSTER=folder; needs root
	scripts/keep-switch $(call demo,cache)

.PHONY: demo-scale
demo-scale: demo-build ## The same data read by 1, 2, 4 and 8 nodes, each with a store of its own; LOBSTER=folder; needs root
	scripts/keep-switch $(call demo,scale)

.PHONY: test-demos
test-demos: demo-build ## The demos in tiny form: their ends, their events, Ctrl-C, wrong arguments; nothing is left; needs root
	@scripts/keep-switch scripts/test-demos "$(cache)/s3-clients/bin/python" $(demo_programs)

# 64-byte records first, then 100-byte ones beside GNU sort and DuckDB: 10 GB are NODES=2 MB=5000.
NODES ?= 2
MB ?= 500
.PHONY: demo-sort
demo-sort: bench-build ## Sort records over nodes through their mounts, beside GNU sort and DuckDB; NODES=2 MB=500 each; needs root
	@scripts/bootstrap bench-fleet
	@scripts/python-venv "$(cache)/python-sort" duckdb
	$(call figure,sort,--nodes $(NODES))
	$(call figure,sort,--nodes $(NODES) --mb $(MB) --form gensort --gnu --duckdb "$(cache)/python-sort/bin/python" --rounds 1)

.PHONY: bench-transport
bench-transport: bench-build ## P1: the fleet's transport over veth, compared with iperf3 and nginx with curl where they are installed
	$(call figure,transport)

.PHONY: bench-basic
bench-basic: bench-build ## Everyday work against ext4 and tmpfs
	$(call figure,basic)

.PHONY: bench-tail
bench-tail: bench-build ## F1: how long open() and read() take, 1 to 256 readers, compared with tmpfs
	$(call figure,tail)

# Sources are fetched once from the distribution's packages into the cache. MIRRORS=DIR names full-history
# mirrors instead.
.PHONY: bench-workloads
bench-workloads: bench-build ## F5: six programs cloned, built, run, walked, packed, removed, compared with ext4; MIRRORS=DIR
	@scripts/bootstrap bench-workloads
	@[ -n "$(MIRRORS)" ] || scripts/workload-sources "$(cache)/workloads"
	$(call figure,workloads,--mirrors "$(or $(MIRRORS),$(cache)/workloads)")

.PHONY: bench-daemon
bench-daemon: ## What each operation costs in the daemon, without a kernel: medians by criterion; FILTER=part of a name
	$(CARGO) bench --package covey-fs --package covey-meta --package covey-fuse --bench operations --bench names \
		--bench dispatch -- $(FILTER)

.PHONY: bench-protocol
bench-protocol: ## What the wire between guests and their server costs, without sockets, beside a copy: by criterion
	$(CARGO) bench --package covey-stream --bench protocol -- $(FILTER)

.PHONY: profile-daemon
profile-daemon: ## Where the instructions of each operation go, by callgrind (needs valgrind); OPS="create read-blob"
	@scripts/profile-daemon $(OPS)

# Simulates a fleet with the real tracker, plan and placement. The results are saved next to the measured
# figures; SIM_RESULTS=DIR names another folder.
SIM_RESULTS ?= bench/results/$(shell date -u +%Y-%m-%d)-sim
sim = "$(CARGO_TARGET_DIR)/release/covey-sim"

.PHONY: sim
sim: ## Simulate the fleet at 10 to 10,000 nodes: a flash crowd, crashes and slow nodes, every day; some minutes
	@scripts/bootstrap build
	$(CARGO) build --release --package covey-sim
	@mkdir -p "$(SIM_RESULTS)"
	@{ $(sim) flash --nodes 10,100,1000,10000 --blobs 320 --json "$(SIM_RESULTS)/flash.json"; \
	$(sim) flash --nodes 10,100,1000,10000 --blobs 64 --json "$(SIM_RESULTS)/flash-64.json"; \
	$(sim) flash --nodes 10,100,1000 --blobs 320 --slow 50 --json "$(SIM_RESULTS)/flash-slow.json"; \
	$(sim) flash --nodes 10,30,100,300,1000 --blobs 320 --slow 50 --crash 100 --json "$(SIM_RESULTS)/flash-faults.json"; \
	$(sim) flash --nodes 10000 --blobs 64 --slow 50 --crash 100 --json "$(SIM_RESULTS)/flash-faults-64.json"; \
	$(sim) steady --nodes 10,100,300 --seconds 60 --json "$(SIM_RESULTS)/steady.json"; \
	$(sim) steady --nodes 10,30,100 --seconds 300 --json "$(SIM_RESULTS)/steady-long.json"; \
	$(sim) steady --nodes 10,30 --seconds 300 --depots 1 --json "$(SIM_RESULTS)/steady-depot.json"; \
	$(sim) steady --nodes 100 --seconds 300 --depots 4 --depot-room 5000 --json "$(SIM_RESULTS)/steady-depots.json"; \
	$(sim) steady --nodes 10,30,100 --seconds 300 --costs same --json "$(SIM_RESULTS)/steady-same.json"; \
	$(sim) steady --nodes 10,30 --seconds 300 --depots 1 --costs same --json "$(SIM_RESULTS)/steady-depot-same.json"; \
	$(sim) flash --nodes 10,100,300 --blobs 64 --holders gossip --json "$(SIM_RESULTS)/holders-gossip.json"; \
	$(sim) flash --nodes 10,100,300 --blobs 64 --holders gossip-early --json "$(SIM_RESULTS)/holders-gossip-early.json"; \
	$(sim) flash --nodes 10,100,300 --blobs 64 --holders gossip-early --gossip-ms 20 --json "$(SIM_RESULTS)/holders-gossip-early-20ms.json"; \
	$(sim) flash --nodes 10,100,300 --blobs 64 --json "$(SIM_RESULTS)/holders-tracker.json"; \
	$(sim) steady --nodes 10,30 --blobs 20000 --seconds 30 --holders gossip --json "$(SIM_RESULTS)/steady-gossip.json"; \
	$(sim) steady --nodes 10,30 --blobs 20000 --seconds 30 --json "$(SIM_RESULTS)/steady-tracker.json"; \
	$(sim) zipf --json "$(SIM_RESULTS)/zipf.json"; } | tee "$(SIM_RESULTS)/sim.txt"
	$(CARGO) run --release --package covey-bench -- zipf-chart "$(SIM_RESULTS)/zipf.json"
	$(CARGO) run --release --package covey-sim --example charts -- "$(SIM_RESULTS)"

##@ Tidy

.PHONY: clean
clean: ## Remove what was built
	rm -rf target
	@case "$(CARGO_TARGET_DIR)" in */covey/build) rm -rf "$(CARGO_TARGET_DIR)" ;; esac

.PHONY: help
help: ## List the commands
	@awk 'BEGIN { FS = ":.*## " } \
	/^##@/ { printf "\n%s\n", substr($$0, 5) } \
	/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
