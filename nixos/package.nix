# The daemon and its client (`out`), the simulated Orin (`sim`).
{
  lib,
  rustPlatform,
  rustc,
  autoAddDriverRunpath,
  installShellFiles,
  stdenv,
  # Recorded in the reports of `orinctl bench`.
  commit ? null,
}:
let
  workspace = (lib.importTOML ../Cargo.toml).workspace.package;
  wanted = workspace.rust-version;
in
assert lib.assertMsg (lib.versionAtLeast rustc.version wanted) ''
  orind needs Rust ${wanted}, this nixpkgs has ${rustc.version}: take nixos-26.05 or later, or the
  package that the flake builds with its own nixpkgs (packages.<system>.orind)'';
rustPlatform.buildRustPackage {
  pname = "orind";
  inherit (workspace) version;

  # Excludes files that change neither the programs nor their tests, so that editing them rebuilds nothing.
  src = lib.cleanSourceWith {
    name = "orind-source";
    src = ../.;
    filter =
      path: _:
      let
        file = lib.removePrefix "${toString ../.}/" path;
      in
      !lib.elem file [
        ".ci"
        "CHANGELOG.md"
        "CONTRIBUTING.md"
        "README.md"
        "SECURITY.md"
        "docs/nixos.md"
        "flake.nix"
        "flake.lock"
      ]
      && (lib.hasPrefix "nixos/" file -> file == "nixos/settings.json");
  };
  cargoLock.lockFile = ../Cargo.lock;
  cargoBuildFlags = [
    "--package=orind"
    "--package=tegra-sim"
    "--package=tegra-sim-preload"
  ];
  # Optimised for speed and stripped; see the profile in Cargo.toml.
  buildType = "dist";
  # The simulator's library is installed separately, so the program does not embed it.
  env = {
    TEGRA_SIM_CARRY = "no";
  }
  // lib.optionalAttrs (commit != null) { ORIND_COMMIT = commit; };

  # libcuda is loaded at run time, from the driver directory of NixOS (/run/opengl-driver/lib).
  nativeBuildInputs = [
    autoAddDriverRunpath
    installShellFiles
  ];

  outputs = [
    "out"
    "sim"
  ];
  postInstall = ''
    install -Dm444 -t $out/lib/systemd/system systemd/orind.service systemd/orind.socket
    substituteInPlace $out/lib/systemd/system/orind.service \
      --replace-fail /usr/bin/orind $out/bin/orind
    install -Dm444 systemd/sysusers.conf $out/lib/sysusers.d/orind.conf
    install -Dm444 systemd/tmpfiles.conf $out/lib/tmpfiles.d/orind.conf
    install -Dm444 systemd/udev.rules $out/lib/udev/rules.d/70-orind.rules
    install -Dm444 -t $out/share/orind/drop-ins systemd/drop-ins/*.conf

    ${lib.optionalString (stdenv.buildPlatform.canExecute stdenv.hostPlatform) ''
      $out/bin/orinctl man $out/share/man/man1
      for shell in bash zsh fish; do
        $out/bin/orinctl completions $shell > orinctl.$shell
      done
      installShellCompletion --cmd orinctl orinctl.{bash,zsh,fish}
    ''}
    moveToOutput bin/tegra-sim "$sim"
    moveToOutput lib/libtegra_sim_preload.so "$sim"
  '';

  # The suite takes minutes; it is a check of the flake.
  doCheck = false;

  meta = {
    description = "Runs GGUF language models on NVIDIA Jetson Orin by driving the GPU itself";
    homepage = workspace.repository;
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    mainProgram = "orinctl";
    platforms = [
      "aarch64-linux"
      "x86_64-linux"
    ];
  };
}
