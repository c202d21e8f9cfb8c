# Tests of services.orind: the resulting system, and the messages for settings that cannot work. The cases
# hold in nixpkgs' NixOS and in its stub (nixpkgs/nixos.nix).
{
  lib,
  pkgs,
  runCommand,
  # Evaluates a list of modules to a system.
  nixosSystem,
  # orind's module.
  module,
}:
let
  evaluate =
    configuration:
    (nixosSystem {
      modules = [
        module
        { nixpkgs.pkgs = pkgs; }
        configuration
      ];
    }).config;
  enabled =
    settings:
    evaluate {
      services.orind = {
        enable = true;
        inherit settings;
      };
    };

  # Messages of orind's failed assertions.
  complaintsOf =
    config:
    map (each: each.message) (
      lib.filter (each: !each.assertion && lib.hasInfix "orind" each.message) config.assertions
    );
  complaints = settings: complaintsOf (enabled settings);
  failed = config: lib.length (complaintsOf config);
  # True if there is exactly one message, and it contains these words.
  complains =
    settings: words:
    let
      found = complaints settings;
    in
    lib.length found == 1 && lib.all (word: lib.hasInfix word (lib.head found)) words;
  # True if the option types refuse the settings.
  refused =
    settings:
    !(builtins.tryEval (builtins.deepSeq (enabled settings).services.orind.settings true)).success;

  # orind's packages among those whose units a system has.
  packages =
    config: lib.filter (lib.hasPrefix "orind") (map lib.getName config.systemd.packages);

  plain = enabled { };
  declared = lib.importJSON ../settings.json;

  # The action of `nixos-rebuild switch` when these settings replace the defaults.
  triggers =
    settings:
    let
      old = plain.systemd.services.orind;
      new = (enabled settings).systemd.services.orind;
    in
    if new.restartTriggers != old.restartTriggers then
      "restart"
    else if new.reloadTriggers != old.reloadTriggers then
      "reload"
    else
      "nothing";
  foreign = if pkgs.stdenv.hostPlatform.isAarch64 then "avx2" else "neon";

  cases = {
    testNothingWithoutEnable = {
      expr =
        let
          config = evaluate { };
        in
        {
          packages = packages config;
          groups = config.users.groups ? orind;
        };
      expected = {
        packages = [ ];
        groups = false;
      };
    };
    testDefaultsAreTheDaemons = {
      expr = plain.services.orind.settings;
      expected = lib.mapAttrs (_: key: key.default) declared;
    };
    testDefaultsComplainOfNothing = {
      expr = complaints { };
      expected = [ ];
    };
    testFirewallStaysClosed = {
      expr = plain.networking.firewall.allowedTCPPorts;
      expected = [ ];
    };
    testUnitsOfThePackage = {
      expr = {
        service = plain.systemd.services.orind.wantedBy;
        socket = plain.systemd.sockets.orind.wantedBy;
        inherit (plain.systemd.sockets.orind) listenStreams;
        packages = packages plain;
        all = lib.all (lib.elem pkgs.orind) [
          plain.systemd.tmpfiles.packages
          plain.services.udev.packages
        ];
      };
      expected = {
        service = [ "multi-user.target" ];
        socket = [ "sockets.target" ];
        listenStreams = [ ];
        packages = [ "orind" ];
        all = true;
      };
    };
    testSocketElsewhere = {
      expr = (enabled { socket = "/run/llm.sock"; }).systemd.sockets.orind.listenStreams;
      expected = [
        ""
        "/run/llm.sock"
      ];
    };
    testWhatAReloadChangesNeedsNoRestart = {
      expr = map triggers [
        { queue_limit = 8; }
        { log = "debug"; }
        { slots = 2; }
        { model = "a"; }
      ];
      expected = [
        "reload"
        "reload"
        "restart"
        "restart"
      ];
    };
    testMembersOfTheGroup = {
      expr =
        (evaluate {
          services.orind = {
            enable = true;
            users = [ "alice" ];
          };
        }).users.groups.orind.members;
      expected = [ "alice" ];
    };
    testUnknownKeyIsRefused = {
      expr = refused { prefil_chunk = 8; };
      expected = true;
    };
    testValuesOutOfLimitsAreRefused = {
      expr = map refused [
        { slots = 0; }
        { slots = "4"; }
        { backend = "tpu"; }
        { socket = "relative.sock"; }
        { socket_mode = "0999"; }
        { model = ./module.nix; }
      ];
      expected = lib.genList (_: true) 6;
    };
    testLimitsThemselvesAreTaken = {
      expr = map refused [
        { slots = 256; }
        { shutdown_deadline_s = 0; }
        { model = "/models/a.gguf"; }
      ];
      expected = lib.genList (_: false) 3;
    };
    testModelWhereTheServiceSeesNothing = {
      expr = complains { model = "/tmp/a.gguf"; } [
        "settings.model"
        "/var/lib/orind/models"
      ];
      expected = true;
    };
    testModelsBesideAHiddenFolder = {
      expr = complaints { models_dir = "/homes/models"; };
      expected = [ ];
    };
    testLongSocket = {
      expr = complains { socket = "/run/" + lib.concatStrings (lib.genList (_: "x") 110); } [ "115 bytes" ];
      expected = true;
    };
    testForeignInstructionSet = {
      expr = complains { cpu_isa = foreign; } [
        foreign
        "scalar"
      ];
      expected = true;
    };
    testCudaNeedsTheDropIn = {
      expr = complains { backend = "cuda"; } [ "services.orind.cuda.enable" ];
      expected = true;
    };
    testCudaNeedsTheDriver = {
      expr = failed (evaluate {
        services.orind = {
          enable = true;
          cuda.enable = true;
        };
      });
      expected = 1;
    };
    testCudaRelaxesTheUnit = {
      expr =
        let
          config = evaluate {
            services.orind = {
              enable = true;
              cuda.enable = true;
              settings.backend = "cuda";
            };
            hardware.graphics.enable = true;
          };
        in
        {
          failed = failed config;
          packages = packages config;
        };
      expected = {
        failed = 0;
        packages = [
          "orind"
          "orind-cuda"
        ];
      };
    };
    testPortOnThisMachine = {
      expr =
        let
          config = enabled { listen = "127.0.0.1:8080"; };
        in
        {
          packages = packages config;
          complaints = complaintsOf config;
          ports = config.networking.firewall.allowedTCPPorts;
        };
      expected = {
        packages = [
          "orind"
          "orind-tcp"
        ];
        complaints = [ ];
        ports = [ ];
      };
    };
    testPortForOthers = {
      expr =
        let
          config = evaluate {
            services.orind = {
              enable = true;
              openFirewall = true;
              clients = [ "192.168.7.0/24" ];
              settings.listen = "[::]:8080";
              settings.token_file = "/run/secrets/orind";
            };
          };
        in
        {
          complaints = complaintsOf config;
          ports = config.networking.firewall.allowedTCPPorts;
          inherit (config.systemd.services.orind) serviceConfig;
        };
      expected = {
        complaints = [ ];
        ports = [ 8080 ];
        serviceConfig.IPAddressAllow = [ "192.168.7.0/24" ];
      };
    };
    testPortForOthersNeedsTokenAndClients = {
      expr = map (lib.hasInfix "0.0.0.0:8080") (complaints { listen = "0.0.0.0:8080"; });
      expected = [
        true
        true
      ];
    };
    testTokenInTheStore = {
      expr = complains {
        listen = "127.0.0.1:1";
        token_file = "${builtins.storeDir}/token";
      } [ "every user" ];
      expected = true;
    };
    testAddressesAreChecked = {
      expr = map (listen: refused { inherit listen; }) [
        "localhost"
        "8080"
        "::1:8080"
        "[::1]:8080"
      ];
      expected = [
        true
        true
        true
        false
      ];
    };
    testFilterAgainstCuda = {
      expr = failed (evaluate {
        services.orind = {
          enable = true;
          cuda.enable = true;
          settings.ioctl_filter = "on";
        };
        hardware.graphics.enable = true;
      });
      expected = 1;
    };
    testEveryKeyIsDescribed = {
      expr = lib.filter (option: option.description == "") (
        lib.attrValues (import ../settings.nix { inherit lib; })
      );
      expected = [ ];
    };
  };
  failures = lib.runTests cases;
in
if failures == [ ] then
  runCommand "orind-module" { } "echo ${toString (lib.length (lib.attrNames cases))} cases > $out"
else
  throw "services.orind: ${lib.generators.toPretty { } failures}"
