# services.orind: the daemon as a NixOS service.
#
# The unit, its socket, its device rules and all of its hardening are the files of systemd/, as on every
# other distribution; the package contains them. This module adds only the parts that are specific to
# NixOS: settings, package, members of the group.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.orind;
  inherit (cfg) settings;
  inherit (lib) mkOption types;
  inherit (pkgs.stdenv) hostPlatform;

  declared = lib.importJSON ./settings.json;
  atRestart = lib.filterAttrs (key: _: !declared.${key}.reload) settings;
  ownSocket = settings.socket != declared.socket.default;

  # Address and port; null if the daemon serves only its unix socket.
  tcp =
    let
      parts = lib.splitString ":" settings.listen;
    in
    if settings.listen == "" then
      null
    else
      {
        host = lib.concatStringsSep ":" (lib.init parts);
        port = lib.toInt (lib.last parts);
      };
  far = tcp != null && !(lib.hasPrefix "127." tcp.host || tcp.host == "[::1]");

  # A drop-in of systemd/drop-ins, which relaxes the unit.
  dropIn =
    name:
    pkgs.runCommand "orind-${name}" { } ''
      install -Dm444 ${cfg.package}/share/orind/drop-ins/${name}.conf \
        $out/lib/systemd/system/orind.service.d/${name}.conf
    '';

  below = directory: path: lib.hasPrefix "${directory}/" "${path}/";
  # Directories that the unit hides from the daemon: ProtectHome= and PrivateTmp=.
  hidden = [
    "/home"
    "/root"
    "/run/user"
    "/tmp"
    "/var/tmp"
  ];
  visible = key: {
    assertion = !lib.any (directory: below directory settings.${key}) hidden;
    message = ''
      services.orind.settings.${key} is ${settings.${key}}: the service sees nothing below ${lib.concatStringsSep ", " hidden}.
      Put models into /var/lib/orind/models, or on a volume of their own.'';
  };
  isas =
    if hostPlatform.isAarch64 then
      [ "neon" ]
    else
      [
        "avx2"
        "avx512"
        "amx"
      ];

  jetpack = config.hardware.nvidia-jetpack or { enable = false; };
in
{
  options.services.orind = {
    enable = lib.mkEnableOption "orind, which runs GGUF language models on NVIDIA Jetson Orin";

    package = lib.mkPackageOption pkgs "orind" { };

    settings = mkOption {
      type = types.submodule { options = import ./settings.nix { inherit lib; }; };
      default = { };
      example = {
        model = "llama-3.2-1b-q6_k.gguf";
        context = 8192;
      };
      description = ''
        The daemon's configuration, `orind.toml`. An unknown key or a value out of range fails the
        evaluation.
      '';
    };

    cuda.enable = mkOption {
      type = types.bool;
      default = false;
      description = ''
        Whether the service may run models through CUDA. The CUDA driver decides which system calls and
        devices it uses, so the unit is less strict then (`systemd/drop-ins/cuda.conf`). The `nv` backend,
        which drives an Orin's GPU directly, does not need this.
      '';
    };

    clients = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [ "192.168.7.0/24" ];
      description = ''
        Networks, in addition to this machine, that may reach the port of `settings.listen`
        (`IPAddressAllow=` of the unit).
      '';
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether to open the port of `settings.listen` in the firewall.";
    };

    users = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [ "alice" ];
      description = "Users who may use the daemon: they become members of the group `orind`.";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      (visible "model")
      (visible "models_dir")
      (visible "token_file")
      {
        assertion = far -> settings.token_file != "";
        message = ''
          services.orind.settings.listen is "${settings.listen}": other machines may reach it, so a token is needed.
          Set services.orind.settings.token_file to a file that only the user orind can read.'';
      }
      {
        assertion = !lib.hasPrefix builtins.storeDir settings.token_file;
        message = ''
          services.orind.settings.token_file is in the store, where every user can read it.
          Put it elsewhere, such as below /run/secrets, readable by the user orind only.'';
      }
      {
        assertion = cfg.openFirewall || cfg.clients != [ ] -> far;
        message = ''
          services.orind.openFirewall or services.orind.clients is set, and the daemon listens on
          ${if tcp == null then "no port" else tcp.host}. Set services.orind.settings.listen, such as "0.0.0.0:8080".'';
      }
      {
        assertion = far -> cfg.clients != [ ];
        message = ''
          services.orind.settings.listen is "${settings.listen}", and the unit admits this machine only.
          Set services.orind.clients, such as [ "192.168.7.0/24" ].'';
      }
      {
        assertion = settings.ioctl_filter == "on" -> !cfg.cuda.enable;
        message = ''
          services.orind.settings.ioctl_filter is "on" and services.orind.cuda.enable is set: which ioctls the CUDA
          driver makes is not known. Take "auto", or do without CUDA.'';
      }
      {
        assertion = lib.stringLength settings.socket <= 107;
        message = "services.orind.settings.socket has ${toString (lib.stringLength settings.socket)} bytes; a unix socket's path may have 107.";
      }
      {
        assertion = settings.backend == "nv" -> hostPlatform.isAarch64;
        message = ''
          services.orind.settings.backend is "nv", the Orin's own GPU, and this system is ${hostPlatform.system}.
          Take "auto", "cuda" or "cpu".'';
      }
      {
        assertion = settings.backend == "cuda" -> cfg.cuda.enable;
        message = ''
          services.orind.settings.backend is "cuda", and the unit does not let the CUDA driver work:
          set services.orind.cuda.enable = true.'';
      }
      {
        assertion = cfg.cuda.enable -> config.hardware.graphics.enable;
        message = ''
          services.orind.cuda.enable is set, and there is no libcuda below /run/opengl-driver/lib:
          set hardware.graphics.enable = true, and have a module that brings the driver (jetpack-nixos does).'';
      }
      {
        assertion = lib.elem settings.cpu_isa (
          [
            "auto"
            "scalar"
          ]
          ++ isas
        );
        message = ''
          services.orind.settings.cpu_isa is "${settings.cpu_isa}", which ${hostPlatform.system} does not have.
          Take one of auto, ${lib.concatStringsSep ", " isas}, scalar.'';
      }
      {
        assertion = settings.backend == "nv" && jetpack.enable -> jetpack.majorVersion == "6";
        message = ''
          services.orind.settings.backend is "nv", which speaks to the drivers of L4T r36.4, JetPack 6; this system
          has JetPack ${jetpack.majorVersion}. Set hardware.nvidia-jetpack.majorVersion = "6".'';
      }
    ];

    environment.systemPackages = [ cfg.package ];
    environment.etc."orind/orind.toml".source =
      (pkgs.formats.toml { }).generate "orind.toml" settings;

    systemd.packages = [ cfg.package ] ++ map dropIn (
      lib.optional cfg.cuda.enable "cuda" ++ lib.optional (tcp != null) "tcp"
    );
    systemd.tmpfiles.packages = [ cfg.package ];
    services.udev.packages = [ cfg.package ];

    systemd.sockets.orind = {
      wantedBy = [ "sockets.target" ];
      # The empty string clears the unit's own value.
      listenStreams = lib.mkIf ownSocket [
        ""
        settings.socket
      ];
      socketConfig.SocketMode = settings.socket_mode;
    };
    systemd.services.orind = {
      wantedBy = [ "multi-user.target" ];
      # Only keys that a reload does not change trigger a restart, which loads the model again.
      restartTriggers = [ (builtins.toJSON atRestart) ];
      serviceConfig = lib.mkIf (cfg.clients != [ ]) { IPAddressAllow = cfg.clients; };
      reloadTriggers = [ config.environment.etc."orind/orind.toml".source ];
    };

    networking.firewall.allowedTCPPorts = lib.mkIf cfg.openFirewall [ tcp.port ];

    # The same as in systemd/sysusers.conf.
    users.users.orind = {
      isSystemUser = true;
      group = "orind";
      home = "/var/lib/orind";
      description = "orind daemon";
    };
    users.groups.orind.members = cfg.users;
  };
}
