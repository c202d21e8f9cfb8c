# Sourced by the scripts beside it: the environment of a gate, and `stage NAME COMMAND ...`.

export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"
export CARGO_INCREMENTAL=0 # no crate is rebuilt here
export RUST_TEST_THREADS=$((2 * $(nproc))) # tests that start daemons wait about half of the time
export RUSTDOCFLAGS="-D warnings"

stage() {
    local name=$1 start=$SECONDS status=0
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" || status=$?
    if ((status != 0)); then
        printf '== %s: FAILED (exit %d) after %d s\n' "$name" "$status" "$((SECONDS - start))"
        exit "$status"
    fi
    printf '== %s: ok, %d s\n' "$name" "$((SECONDS - start))"
}

# Crates of the simulated Orin, and the kernels that it executes. Their own gate is .ci/simulator.
readonly SIMULATOR=(orind-kernels sass tegra-bundle tegra-profile tegra-sim tegra-sim-preload)
# All that the tests of these crates depend on, one line each: compiler, sources, dependencies, profiles.
simulator_state() {
    local path packages=()
    for path in "${SIMULATOR[@]}"; do packages+=(-p "$path"); done
    rustc --version
    for path in crates/plan crates/testing kernels tegra; do
        printf '%s %s\n' "$(git rev-parse "HEAD:$path")" "$path"
    done
    printf '%s dependencies\n' "$(cargo tree --locked --prefix none "${packages[@]}" | sed 's/ (.*//' | sort -u | git hash-object --stdin)"
    printf '%s profiles\n' "$(sed -n '/^\[profile/,$p' Cargo.toml | git hash-object --stdin)"
}
