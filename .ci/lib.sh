# Helpers shared by the scripts in this folder; sourced, never run.

# Where a script keeps what it has to remember (pid files, logs, downloads). One folder per clone, so that
# `engine stop` in one clone cannot stop what another one started.
state="${OFFBEAT_CI_STATE:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/.state}"
mkdir -p "$state"

say() { printf '[ci] %s\n' "$*" >&2; }

die() { say "$*"; exit 1; }

# retry COMMAND...: mirrors have bad moments and package managers hold locks, so try a few times, more slowly each time.
retry() {
    local attempt
    for attempt in 1 2 3 4 5; do
        "$@" && return 0
        say "attempt $attempt failed: $*"
        [ "$attempt" = 5 ] || sleep $((attempt * 5))
    done
    return 1
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# need PACKAGE...: install the Debian packages that are missing. The list of packages is refreshed on every try, since an
# old one names files that the mirror no longer has.
need() {
    local missing=() package
    for package in "$@"; do installed "$package" || missing+=("$package"); done
    [ ${#missing[@]} = 0 ] && return 0
    say "installing ${missing[*]}"
    retry install_packages "${missing[@]}" || die "could not install: ${missing[*]}"
}

install_packages() {
    # Packages of servers start them when installed; what runs here is started by these scripts alone.
    local policy=/usr/sbin/policy-rc.d ours='' status=0
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && ours=yes
    fi
    apt-get -q update >"$state/apt.log" 2>&1 &&
        DEBIAN_FRONTEND=noninteractive apt-get -q install --yes --no-install-recommends \
            -o DPkg::Lock::Timeout=300 "$@" >>"$state/apt.log" 2>&1 </dev/null || status=$?
    [ -z "$ours" ] || rm -f "$policy"
    [ "$status" = 0 ] || tail -n 5 "$state/apt.log" >&2
    return "$status"
}

# debian_mirror: the archive that this machine itself takes Debian's packages from.
debian_mirror() {
    local release
    release="$(. /etc/os-release && echo "$VERSION_CODENAME")"
    apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="$release" '$1 == release && $2 == "main" { print $3; exit }'
}
