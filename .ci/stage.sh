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

# Crates of the simulated Orin. Their own gate is .ci/simulator.
readonly SIMULATOR=(sass tegra-bundle tegra-profile tegra-sim tegra-sim-preload)
# Hashes of all that the simulator's tests depend on, one line each.
simulator_state() {
    local path
    rustc --version
    for path in Cargo.lock Cargo.toml crates/testing kernels tegra; do
        printf '%s %s\n' "$(git rev-parse "HEAD:$path")" "$path"
    done
}
