# Tools to build, test and measure, to compile kernels, and to run the simulator.
{
  stdenv,
  mkShell,
  addDriverRunpath,
  rustPlatform,
  cargo,
  clippy,
  rustc,
  rustfmt,
  rust-analyzer,
  cargo-deny,
  curl,
  jq,
  python3,
  nix,
  orind-nvrtc,
}:
mkShell {
  packages = [
    cargo
    clippy
    rustc
    rustfmt
    rust-analyzer
    cargo-deny
    curl
    jq
    python3
    nix
  ];

  env = {
    RUST_SRC_PATH = "${rustPlatform.rustLibSrc}";
    # `cargo run -p orind-kernels -- build`
    ORIND_NVRTC = "${orind-nvrtc}/lib/libnvrtc.so.12";
    # Programs built here find libcuda in the driver directory of NixOS, by their rpath. LD_LIBRARY_PATH
    # would be inherited by every program started from this shell; the system's own fail with libraries
    # that were linked with another libc.
    "CARGO_TARGET_${stdenv.hostPlatform.rust.cargoEnvVarTarget}_RUSTFLAGS" =
      "-C link-arg=-Wl,-rpath,${addDriverRunpath.driverLink}/lib";
  };
}
