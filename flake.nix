{
  description = "orind: GGUF language models on NVIDIA Jetson Orin, by driving the GPU itself";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "aarch64-linux"
        "x86_64-linux"
      ];
      pkgsFor =
        system:
        import nixpkgs {
          inherit system;
          overlays = [ self.overlays.default ];
          # NVIDIA's compiler, in the shell only: nothing that is installed contains it.
          config.allowUnfreePredicate = package: lib.getName package == "orind-nvrtc";
        };
      forSystems = f: lib.genAttrs systems (system: f (pkgsFor system));
    in
    {
      overlays.default = final: _: {
        orind = final.callPackage ./nixos/package.nix { commit = self.rev or null; };
        orind-nvrtc = final.callPackage ./nixos/nvrtc.nix { };
      };

      packages = forSystems (
        pkgs:
        {
          inherit (pkgs) orind;
          default = pkgs.orind;
          tegra-sim = pkgs.orind.sim;
          # For container runtimes: `docker load < result`; what runs is as in fleet/Containerfile.
          image = pkgs.dockerTools.buildLayeredImage {
            name = "orind";
            tag = "latest";
            contents = [ pkgs.orind ];
            extraCommands = "mkdir -p -m 1777 run/orind var/lib/orind/models var/cache/orind tmp";
            config = {
              Entrypoint = [
                "/bin/orind"
                "--socket"
                "/run/orind/orind.sock"
              ];
              Env = [
                "XDG_RUNTIME_DIR=/run"
                "XDG_DATA_HOME=/var/lib"
                "XDG_CACHE_HOME=/var/cache"
              ];
              ExposedPorts."8080/tcp" = { };
              User = "990:990";
              StopSignal = "SIGTERM";
            };
          };
        }
        // lib.optionalAttrs pkgs.stdenv.hostPlatform.isx86_64 {
          orind-aarch64 = pkgs.pkgsCross.aarch64-multiplatform.orind;
        }
      );

      apps = forSystems (
        pkgs:
        let
          app = program: {
            type = "app";
            inherit program;
            meta.description = "orind's ${baseNameOf program}";
          };
        in
        {
          default = app "${pkgs.orind}/bin/orinctl";
          orind = app "${pkgs.orind}/bin/orind";
          tegra-sim = app "${pkgs.orind.sim}/bin/tegra-sim";
        }
      );

      devShells = forSystems (pkgs: {
        default = pkgs.callPackage ./nixos/shell.nix { };
      });

      formatter = forSystems (pkgs: pkgs.nixfmt-tree);

      nixosModules.default =
        { lib, pkgs, ... }:
        let
          inherit (pkgs.stdenv) buildPlatform hostPlatform;
          # A system that is cross-compiled gets a cross-compiled daemon.
          cross = buildPlatform.system != hostPlatform.system && hostPlatform.isAarch64;
        in
        {
          imports = [ ./nixos/module.nix ];
          services.orind.package = lib.mkDefault (
            if cross then
              self.packages.${buildPlatform.system}.orind-aarch64
            else
              self.packages.${hostPlatform.system}.orind
          );
        };

      checks = forSystems (pkgs: {
        inherit (pkgs) orind;
        # The whole suite, with the profile that `cargo test` takes.
        tests = pkgs.orind.overrideAttrs {
          name = "orind-tests";
          cargoBuildType = "debug";
          cargoCheckType = "debug";
          cargoTestFlags = [ "--workspace" ];
          doCheck = true;
        };
        module = pkgs.callPackage ./nixos/tests/module.nix {
          inherit (lib) nixosSystem;
          module = self.nixosModules.default;
        };
        # A machine with the module: socket, readiness, an answer, a stop.
        service = pkgs.testers.runNixOSTest {
          imports = [ ./nixos/tests/service.nix ];
          defaults.imports = [ self.nixosModules.default ];
        };
      });
    };
}
