#!/bin/sh
# Installs k8e, or puts a newer one in its place while every session lives on.
#
#   sh install.sh                                              from a checkout
#   curl -fsSL <…>/install.sh | K8E_INSTALL_SOURCE=<…> sh      from a file or an address
#
#   K8E_INSTALL_SOURCE       path or URL of the one-file program `k8e`, of a wheel, or path of a checkout
#   K8E_INSTALL_SHA256       what the file's SHA-256 must be
#   INSTALL_K8E_EXEC         what the service runs: "server --default-runtime container" (default: "server")
#   INSTALL_K8E_BIN_DIR      where the commands go (/usr/local/bin; without root ~/.local/bin)
#   INSTALL_K8E_DATA_DIR     where the server keeps its data (/var/lib/k8e)
#   INSTALL_K8E_SYSTEMD_DIR  where the unit goes (/etc/systemd/system where systemd runs)
#   INSTALL_K8E_SKIP_START   anything: install, and leave a running server as it is
#
# Each version gets a directory of its own in lib/k8e beside the commands, and the command is switched to it by one
# rename: a server that still runs keeps the files that it was started from, and an interrupted run is simply run
# again. `k8e-uninstall.sh`, written beside the commands, takes everything away.
set -eu

ENTRY='import sys; from k8e.cli.main import main; sys.exit(main(prog=sys.argv.pop(1)))'
NAMES='k8e k8e-sandbox k8e-sandbox-cli'

say() { printf 'k8e: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# As one word of a shell script.
quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }

# What an earlier run was told: an upgrade needs no more than the same script again.
kept() { if [ -f "$lib/$1" ]; then cat "$lib/$1"; else printf '%s\n' "$2"; fi; }

choose_command() {
    command=${INSTALL_K8E_EXEC:-${*:-$(kept command server)}}
    case $command in
        server | "server "*) ;;
        agent | "agent "*) die "INSTALL_K8E_EXEC=\"$command\": joining a cluster comes with clusters, which this version does not have; use \"server …\"" ;;
        *) die "INSTALL_K8E_EXEC=\"$command\" does not begin with server" ;;
    esac
    case $command in
        *--data-dir*) die "INSTALL_K8E_EXEC=\"$command\": name the directory with INSTALL_K8E_DATA_DIR, so that clients find it, too" ;;
        *'
'*) die "INSTALL_K8E_EXEC has more than one line" ;;
    esac
}

choose_places() {
    is_root=
    if [ "$(id -u)" = 0 ]; then is_root=yes; fi
    if [ -n "$is_root" ]; then bin=/usr/local/bin; else bin=${HOME:?is not set}/.local/bin; fi
    bin=${INSTALL_K8E_BIN_DIR:-$bin}
    case $bin in /*) ;; *) bin=$PWD/$bin ;; esac
    lib=${bin%/*}/lib/k8e
    data=${INSTALL_K8E_DATA_DIR:-$(kept data /var/lib/k8e)}
    case $data in /*) ;; *) die "INSTALL_K8E_DATA_DIR=\"$data\" is not an absolute path" ;; esac
    for directory in "$bin" "$data"; do
        case $directory in
            # They are written into scripts and a unit, each with quoting rules of its own.
            *[!A-Za-z0-9/._+,@=~\ -]* | *' ' | / | */..* | */) die "\"$directory\" is not a plain path; choose another" ;;
        esac
    done
    units=${INSTALL_K8E_SYSTEMD_DIR:-}
    has_systemd=
    if [ -n "$is_root" ] && [ -d /run/systemd/system ]; then has_systemd=yes units=${units:-/etc/systemd/system}; fi
}

choose_source() {
    source=${K8E_INSTALL_SOURCE:-}
    if [ -z "$source" ]; then
        case $0 in
            */install.sh) source=$(CDPATH='' cd -- "${0%/*}/" && pwd) ;;
            install.sh) source=$PWD ;;
        esac
        [ -f "$source/pyproject.toml" ] || die "nothing to install: set K8E_INSTALL_SOURCE to the path or URL of the one-file program or a wheel, or run install.sh from a checkout"
    fi
}

prepare_places() {
    for directory in "$bin" "$lib"; do
        { mkdir -p "$directory" && : >"$directory/.k8e-probe" && rm -f "$directory/.k8e-probe"; } 2>/dev/null ||
            die "cannot write $directory; choose another place with INSTALL_K8E_BIN_DIR=<directory>"
    done
    if command -v flock >/dev/null 2>&1; then
        exec 9>"$lib/install.lock"
        flock -n 9 || { say "another installation is running; waiting for it"; flock 9; }
    fi
    # What an interrupted run left: nobody can be using it.
    rm -rf "$lib/download"
    for directory in "$lib"/pip-*; do
        if [ -d "$directory" ] && [ ! -f "$directory/stamp" ]; then rm -rf "$directory"; fi
    done
}

fetch() {
    case $source in
        http://* | https://*)
            say "fetching $source"
            mkdir "$lib/download"
            file=$lib/download/${source##*/}
            if command -v curl >/dev/null 2>&1; then curl -fsSL -o "$file" "$source"
            elif command -v wget >/dev/null 2>&1; then wget -q -O "$file" "$source"
            else die "neither curl nor wget is here; fetch the file yourself and name it with K8E_INSTALL_SOURCE"
            fi || die "could not fetch $source"
            ;;
        /*) file=$source ;;
        *) file=$PWD/$source ;;
    esac
    [ -e "$file" ] || die "$file does not exist"
    if [ -n "${K8E_INSTALL_SHA256:-}" ]; then
        [ -f "$file" ] || die "K8E_INSTALL_SHA256 is set, and $file is not a file"
        found=$(sha256sum <"$file")
        [ "${found%% *}" = "$K8E_INSTALL_SHA256" ] || die "$source has SHA-256 ${found%% *}, not $K8E_INSTALL_SHA256; nothing was changed"
    fi
}

# Sets `env`, the new version's Python environment.
install_version() {
    case $file in
        *.whl) install_package "$file" ;;
        *) if [ -d "$file" ]; then install_package "$file"; else install_program; fi ;;
    esac
}

install_program() {
    build=$(head -n 40 "$file" | tr -d '\000' | sed -n 's/^build=\([0-9a-f]\{8,\}\) .*/\1/p') || build=
    [ -n "$build" ] || die "$source is neither k8e's one-file program nor a wheel nor a checkout"
    env=$lib/$build
    # It unpacks itself at its first start, whole or not at all.
    K8E_HOME=$lib /bin/sh "$file" --version >/dev/null || die "$source does not run here (see above)"
}

can_install() {
    "$1" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for python in ${K8E_PYTHON:+"$K8E_PYTHON"} /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$python" >/dev/null 2>&1 && can_install "$python"; then command -v "$python"; return 0; fi
    done
    return 1
}

install_package() {
    python=$(find_python) || die "Python 3.11 or newer with its venv module is missing (Debian: apt-get install python3 python3-venv)"
    env=$lib/pip-$(date -u +%Y%m%d%H%M%S)-$$
    say "installing $file with $python into $env"
    "$python" -I -m venv "$env" >"$lib/install.log" 2>&1 || { tail -n 15 "$lib/install.log" >&2; die "could not make a Python environment"; }
    "$env/bin/python" -I -m pip install --disable-pip-version-check --no-input --progress-bar off \
        "$file[server,otel]" >"$lib/install.log" 2>&1 || { tail -n 15 "$lib/install.log" >&2; die "pip failed (all of it: $lib/install.log); run this again to retry"; }
    rm -f "$lib/install.log"
    : >"$env/stamp"
}

# Everything that others see appears by a rename.
put() {
    cat >"$1.new"
    chmod "$2" "$1.new"
    mv -f "$1.new" "$1"
}

switch() {
    {
        printf '#!/bin/sh\n# Installed by install.sh; k8e-uninstall.sh takes it away.\n'
        if [ "$data" != /var/lib/k8e ]; then
            printf 'export K8E_DATA_DIR="${K8E_DATA_DIR:-%s}"\n' "$data"
        fi
        printf '# -I: neither the caller'\''s directory nor PYTHON* variables may change which code runs.\n'
        printf 'exec %s -I -c %s "$0" "$@"\n' "$(quoted "$env/bin/python")" "$(quoted "$ENTRY")"
    } | put "$bin/k8e" 755
    for name in $NAMES; do
        if [ "$name" != k8e ]; then ln -sf k8e "$bin/$name"; fi
    done
    printf '%s\n' "$command" | put "$lib/command" 644
    printf '%s\n' "$data" | put "$lib/data" 644
    write_uninstall | put "$bin/k8e-uninstall.sh" 755
    if [ -n "$units" ]; then
        mkdir -p "$units" 2>/dev/null || die "cannot write $units; choose another place with INSTALL_K8E_SYSTEMD_DIR"
        write_unit | put "$units/k8e.service" 644
    fi
}

# SAFETY: nothing here may tie a sandbox's life to the server's. Stopping ends the main process alone; without a
# mount namespace of its own the server's mounts are the host's and stay; and a process of the unit that runs out of
# memory ends only itself.
write_unit() {
    words=$(printf %s "$command" | sed 's/[%$]/&&/g')
    cat <<UNIT
[Unit]
Description=k8e: sandboxes for code that nobody trusts
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
EnvironmentFile=-/etc/default/k8e
ExecStart="$bin/k8e" $words --data-dir "$data"
KillMode=process
KillSignal=SIGTERM
TimeoutStopSec=90
Restart=on-failure
RestartSec=1
OOMPolicy=continue
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=0
TasksMax=infinity
UMask=0022

[Install]
WantedBy=multi-user.target
UNIT
}

write_uninstall() {
    cat <<HEAD
#!/bin/sh
# Takes k8e away: the server with every session, its data, the commands, the unit. Written by install.sh.
set -eu
bin=$(quoted "$bin") lib=$(quoted "$lib") data=$(quoted "$data") units=$(quoted "$units") names=$(quoted "$NAMES")
HEAD
    cat <<'BODY'

say() { printf 'k8e: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# On a machine where others than root installed it there is no server of theirs.
is_servers() { [ "$(id -u)" = 0 ] && [ -d "$data/engine" ]; }

# First of all: once the program is gone nobody knows what the sandboxes were.
end_sessions() {
    if [ -d /run/systemd/system ] && [ -n "$units" ] && [ -f "$units/k8e.service" ]; then
        systemctl disable --now k8e.service >/dev/null 2>&1 || :
    fi
    is_servers || return 0
    say "ending the server and every session"
    "$bin/k8e" server stop --destroy --data-dir "$data" >/dev/null ||
        die "could not end every session (see above); nothing was removed, run this again"
}

remove_data() {
    is_servers || return 0
    # SAFETY: never delete through a mount; after the end of every session there is none.
    if grep -qF " $data/" /proc/self/mountinfo; then
        die "something is still mounted below $data; unmount it and run this again"
    fi
    rm -rf "$data"
    # Groups that others use do not go.
    for group in /sys/fs/cgroup/k8e /sys/fs/cgroup/*/k8e /sys/fs/cgroup/k8e-egress /sys/fs/cgroup/*/k8e-egress; do
        rmdir "$group" 2>/dev/null || :
    done
}

remove_program() {
    if [ -n "$units" ]; then
        rm -f "$units/k8e.service"
        if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
    fi
    # The machine's own server, which is root's, says there whom to trust; a file without its mark, or a link, is
    # somebody else's.
    config=/etc/k8e/k8e.yaml
    if [ "$(id -u)" = 0 ] && [ "$data" = /var/lib/k8e ] && [ ! -h "$config" ] && head -n 1 "$config" 2>/dev/null | grep -q '^# Written by the k8e server'; then
        rm -f "$config"
        rmdir /etc/k8e 2>/dev/null || :
    fi
    for name in $names; do rm -f "$bin/$name"; done
    rm -rf "$lib"
    rm -f "$bin/k8e-uninstall.sh"
}

main() {
    end_sessions
    remove_data
    remove_program
    say "k8e is gone; logins and profiles in ~/.k8e and packages that apt-get installed are left"
}

main
BODY
}

# Old versions go once no process was started from them; the network's daemon may outlive many servers.
remove_old_versions() {
    for old in "$lib"/*/; do
        old=${old%/}
        if [ -f "$old/stamp" ] && [ "$old" != "$env" ] && ! is_used "$old"; then rm -rf "$old"; fi
    done
}

# The pattern comes from a pipe: on the command line grep would find itself.
is_used() { printf '%s/\n' "$1" | grep -qsF -f - /proc/[0-9]*/cmdline; }

start() {
    if [ -n "$has_systemd" ]; then
        systemctl daemon-reload
        systemctl enable k8e.service >/dev/null 2>&1
        if [ -z "${INSTALL_K8E_SKIP_START:-}" ]; then
            systemctl restart k8e.service || die "the service does not start: journalctl -u k8e"
            say "the service k8e runs; sessions that were there are still there"
        fi
        return
    fi
    if [ -z "$is_root" ]; then
        say "installed for $(id -un) only, without root: commands and the SDK use a server of this machine's root or one named with K8E_SANDBOX_ENDPOINT; a server of your own needs root"
        return
    fi
    if [ -z "${INSTALL_K8E_SKIP_START:-}" ] && [ -f "$data/server/server.json" ]; then
        "$bin/k8e" server stop --data-dir "$data" >/dev/null || die "the old server does not stop; see $data/server/server.log"
        say "the old server has stopped; its sessions live on and the next server has them"
    fi
    say "systemd does not run here: start the server with \`$bin/k8e $command --data-dir $data\`; the first \`k8e sandbox …\` also starts one, with default settings"
}

main() {
    choose_places
    choose_command "$@"
    choose_source
    prepare_places
    trap 'say "interrupted; run the same command again"; exit 130' INT TERM
    fetch
    install_version
    switch
    rm -rf "$lib/download"
    say "$("$bin/k8e" --version) is installed in $bin"
    case :$PATH: in *:"$bin":*) ;; *) say "$bin is not on your PATH; add it: PATH=$bin:\$PATH" ;; esac
    start
    remove_old_versions
}

# The last line: a download that was cut off does nothing.
main "$@"
