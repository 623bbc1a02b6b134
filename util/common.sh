# shellcheck shell=bash
#
# What the commands in util/ share: messages, packages, nginx's sources and
# free ports.  Sourced, not run.
#
# Sets: root       the project's tree
#       BUILD_DIR  where everything built goes, absolute (default: build)

set -euo pipefail
shopt -s inherit_errexit

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
command_name=util/${0##*/}

# an ordinary Debian user's PATH lacks the places of nginx and debootstrap
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() {
    printf '%s: %s\n' "$command_name" "$*" >&2
}

# The whole command ends, wherever it is called: "exit" in a subshell, such as
# that of $(...), ends nothing but the subshell.  The command in whose arguments
# such a $(...) stands would run once more, with nothing in its place: so what
# calls die sets a variable instead of printing its result (t/commands.t looks
# that nobody writes it otherwise).
trap 'exit 1' USR1

die() {
    say "$@"
    [ "$BASHPID" = "$$" ] || kill -s USR1 "$$"
    exit 1
}

# absolute_path PATH: sets absolute.  nginx's build system can't take white
# space in it
absolute_path() {
    absolute=$(realpath -m -- "$1")

    [[ $absolute != *[[:space:]]* ]] \
        || die "white space in a path is more than nginx's build system can" \
               "take: $absolute"
}

absolute_path "$root"
absolute_path "${BUILD_DIR:-$root/build}"
export BUILD_DIR=$absolute

# os_release KEY: what the system says it is
os_release() {
    sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" /etc/os-release 2>/dev/null
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "root is needed for: $*; run it as root, or install sudo"
    fi
}

# quietly LOG COMMAND...: the output goes to the log, and is shown on failure
quietly() {
    local log=$1

    shift
    mkdir -p "${log%/*}"
    ! "$@" >"$log" 2>&1 </dev/null || return 0

    tail -n 40 "$log" >&2
    say "the whole output is in $log"
    return 1
}

# -- packages ----------------------------------------------------------------

# On a system without dpkg a package counts as installed if the command that
# it is wanted for is there; libraries are then left to nginx's configure,
# which names each one that it misses.
is_installed() {
    if command -v dpkg-query >/dev/null; then
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" \
          = installed ]
    else
        [[ $1 = *-dev ]] || command -v "${1/psmisc/fuser}" >/dev/null
    fi
}

# need_packages NAME...: installs those of the Debian packages that are missing
need_packages() {
    local name missing=()

    for name in "$@"; do
        is_installed "$name" || missing+=("$name")
    done

    [ ${#missing[@]} -gt 0 ] || return 0

    command -v apt-get >/dev/null \
        || die "this system has no apt-get; please install what Debian calls:" \
               "${missing[*]}"

    update_lists
    say "installing ${missing[*]}"
    apt_install "${missing[@]}"
}

# update_lists: once for each command; what fails is told by apt itself
update_lists() {
    [ -z "${lists_updated:-}" ] || return 0
    lists_updated=1

    as_root apt-get -qq update </dev/null \
        || say "apt-get update failed, going on with the lists as they are"
}

apt_install() {
    quietly "$BUILD_DIR/log/apt" \
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y --no-install-recommends \
                -o DPkg::Lock::Timeout=300 "$@" \
        || die "could not install: $*"
}

# candidate NAME: the version that this release has of a package, if any
candidate() {
    LC_ALL=C apt-cache -q policy "$1" 2>/dev/null \
        | sed -n 's/^  Candidate: \(.*[^)]\)$/\1/p' || true
}

# upstream_version NAME: without Debian's part
upstream_version() {
    candidate "$1" | sed 's/^[0-9]*://; s/[^0-9.].*//'
}

# -- other Debian suites and source packages ---------------------------------

# scratch_apt SUITE TYPE: an apt configuration of its own below BUILD_DIR, for
# looking into a suite (empty: this machine's) without enabling anything on the
# machine.  Sets scratch_conf, to be given as "apt-get -c"; fails if the suite
# can't be had.
#
# The sources are the machine's own active ones with another suite or type, so
# that the mirror, the components, the keys and the options stay what this
# machine's owner chose.  Foreign repositories drop out, as their suites are
# not named after the release; and for another suite those of updates.
scratch_apt() {
    local dir=$BUILD_DIR/apt/${1:-own}-$2 own s='[[:space:]]' list parts

    scratch_conf=$dir/apt.conf

    # one run needs the lists once; some time later they may be out of date
    [ -z "$(find "$dir/updated" -mmin -60 2>/dev/null)" ] || return 0

    rm -rf "$dir"
    mkdir -p "$dir/sources" "$dir/lists/partial" "$dir/cache/archives/partial"

    eval "$(apt-config shell list Dir::Etc::sourcelist/f \
                             parts Dir::Etc::sourceparts/d)"

    own=$(for name in VERSION UBUNTU DEBIAN; do os_release "${name}_CODENAME"; done)
    own="(${own//$'\n'/|}|(old)*stable|testing|unstable|sid)"
    [ -n "$1" ] && own+='()' || own+='([-/][^[:space:]]*)?'

    # one line each: prefix with options, suite, the rest
    cat "$list" "$parts"/*.list 2>/dev/null | sed -nE \
        "s,^deb($s+(\[[^]]*\]$s+)?[^[:space:]]+$s+)($own)($s),$2\1${1:-\\3}\7,p" \
        >"$dir/sources/machine.list" || true

    # stanzas (deb822)
    cat "$parts"/*.sources 2>/dev/null | sed '/^#/d' | perl -00 -ne '
        BEGIN { ($own, $suite, $type) = splice @ARGV }
        next if /^Enabled:\s*(no|false|off|0)/mi || !/^Types:.*\bdeb(?!-)/mi;

        1 while s/^(Suites:.*)\n[ \t]+/$1 /mi;
        my @suites = grep { m{^$own$} } map { split } /^Suites:(.*)/mi;
        @suites = $suite if $suite && @suites;

        s/^Suites:.*/Suites: @suites/mi;
        s/^Types:.*/Types: $type/mi;
        print if @suites;
    ' "$own" "$1" "$2" >"$dir/sources/machine.sources" || true

    cat >"$scratch_conf" <<END
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Default-Release;
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Sandbox::User "$(id -un)";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$dir/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "$dir/lists";
Dir::Cache "$dir/cache";
Dir::Cache::archives "$dir/cache/archives";
END

    # one of several sources may fail (an archive without source packages);
    # whether the wanted package is there shows itself later
    apt-get -c "$scratch_conf" -q update >"$dir/log" 2>&1 </dev/null || true
    [ -n "$(find "$dir/lists" -name '*_Packages*' -o -name '*_Sources*')" ] \
        || { tell_apt_errors "$dir/log"; return 1; }

    touch "$dir/updated"
}

# tell_apt_errors LOG: what apt said itself, and what helps against the usual
# trouble of a mirror
tell_apt_errors() {
    sed -n "s,^[EW]:,$command_name: &,p" "$1" | sort -u >&2

    ! grep -q 'is expired\|is not valid yet' "$1" \
        || say "if you trust this mirror all the same: echo" \
               "'Acquire::Check-Valid-Until \"false\";'" \
               "> /etc/apt/apt.conf.d/99check-valid-until"
}

# The suites of Debian that are newer than this machine's release, the oldest
# first: by the names that the machine knows (distro-info-data) and those known
# here.  Of its kin, what comes next.
newer_suites() {
    local all

    if [[ " $(os_release ID) $(os_release ID_LIKE) " = *" ubuntu "* ]]; then
        echo devel
        return
    fi

    all=$({ sed -n -E 's/^[0-9.]+,[^,]*,([a-z-]+),.*/\1/p' \
                /usr/share/distro-info/debian.csv 2>/dev/null || true
            printf '%s\n' bullseye bookworm trixie forky duke sid
          } | awk '!seen[$0]++ { printf "%s ", $0 }')

    echo "${all#*"$(os_release VERSION_CODENAME) "}"
}

# fetch_newer PACKAGE DIR: puts one package of a newer suite into DIR, one of
# those for any architecture, whose dependencies this machine's release has.
# Each suite is tried in turn, the oldest first; at last those names that the
# archive always has, whatever its releases are called.
fetch_newer() {
    local suite

    for suite in $(newer_suites) stable testing unstable experimental; do
        say "looking for $1 in $suite"
        scratch_apt "$suite" deb || continue

        ! (cd "$2" && apt-get -c "$scratch_conf" -q download "$1") \
            >"$BUILD_DIR/log/download" 2>&1 </dev/null || return 0

        tell_apt_errors "$BUILD_DIR/log/download"
    done

    return 1
}

# make_tree DIR COMMAND...: the command makes one directory where it is run,
# which becomes DIR (that must not exist)
make_tree() {
    local dir=$1 tmp rc=0

    shift
    mkdir -p "${dir%/*}" "$BUILD_DIR/log"
    tmp=$(mktemp -d "$dir.XXXXXX")

    # shellcheck disable=SC2016
    (cd "$tmp" && "$@" && mv ./*/ "$dir") >"$BUILD_DIR/log/source" 2>&1 </dev/null \
        || rc=1

    rm -rf "$tmp"
    return $rc
}

# fetch_source PACKAGE VERSION SUITE DIR: unpacks a source package into DIR;
# VERSION empty: the newest; SUITE empty: this machine's
fetch_source() {
    need_packages dpkg-dev
    scratch_apt "$3" deb-src || return 1

    # shellcheck disable=SC2016
    make_tree "$4" sh -c '
        apt-get -c "$1" -q source --download-only --only-source "$2" \
        && dpkg-source --no-check -x ./*.dsc' \
        sh "$scratch_conf" "$1${2:+=$2}"
}

# upstream_url VERSION: where that of nginx, or of its kin, is
upstream_url() {
    local from=https://nginx.org/download name=nginx

    case ${kin:-} in
        angie)      from=https://download.angie.software/files ;;
        freenginx)  from=https://freenginx.org/download ;;
        openresty)  from=https://openresty.org/download ;;
        tengine)    from=https://tengine.taobao.org/download ;;
    esac

    [ "${kin:-plus}" = plus ] || name=$kin

    printf '%s/%s-%s.tar.gz\n' "${NGINX_DOWNLOAD:-$from}" "$name" "$1"
}

fetch_upstream_source() {
    command -v curl >/dev/null || need_packages curl ca-certificates
    say "fetching $(upstream_url "$1")"

    # shellcheck disable=SC2016
    make_tree "$2" bash -o pipefail -c 'curl -fL --retry 2 "$1" | tar -xzf -' \
                   bash "$(upstream_url "$1")"
}

# -- the nginx that is installed -------------------------------------------------

# find_nginx: sets nginx_bin to NGINX_BIN, to the nginx in PATH or else to one of
# its kin, empty if there is none; kin to its name, empty for nginx itself; and
# nginx_is, kin_version to the version of nginx and to its own
find_nginx() {
    local path said

    nginx_bin=${NGINX_BIN:-$(command -v nginx || true)}
    kin='' kin_version='' nginx_is=''

    [ -z "${NGINX_BIN:-}" ] || [ -f "$NGINX_BIN" ] && [ -x "$nginx_bin" ] \
        || [ -z "$nginx_bin" ] || die "NGINX_BIN=$nginx_bin is no program"

    if [ -z "$nginx_bin" ]; then
        for path in openresty angie freenginx tengine \
                    /usr/local/{openresty/nginx,nginx,freenginx,tengine}/sbin/nginx \
                    /usr/local/angie/sbin/angie
        do
            ! nginx_bin=$(command -v "$path") || break
        done
    fi

    [ -n "$nginx_bin" ] || return 0

    said=$("$nginx_bin" -v 2>&1) || true
    kin_version=$(sed -n 's,^[A-Za-z]* version: [A-Za-z]*/\([^ ]*\).*,\1,p' \
                      <<<"$said" | head -n 1)
    nginx_is=$(sed -n 's,^nginx version: nginx/\([^ ]*\).*,\1,p' <<<"$said")

    case $said in
        *'nginx version: openresty/'*)
            kin=openresty nginx_is=${kin_version%.*} ;;
        *'nginx version: freenginx/'*)
            kin=freenginx nginx_is=$kin_version ;;
        *'Angie version: '*)    kin=angie ;;
        *'Tengine version: '*)  kin=tengine ;;
        *'(nginx-plus-'*)       kin=plus ;;
    esac

    [ -n "$nginx_is" ] || die "$nginx_bin is no nginx: $said"
}

# nginx_version DIR: the version of a source or header tree
nginx_version() {
    sed -n 's/^#define NGINX_VERSION *"\(.*\)"/\1/p' "$1/src/core/nginx.h" \
        2>/dev/null || true
}

# installed_nginx_source: the whole source of the installed nginx, fetched once;
# sets nginx_source.  If it is the distribution's, as that patched it, else as
# nginx.org, or its kin, has it.
installed_nginx_source() {
    local version sub=''

    version=$nginx_is
    [ "${kin:-plus}" = plus ] || version=$kin_version
    [ "$kin" != openresty ] || sub=/bundle/nginx-$nginx_is

    nginx_source=$BUILD_DIR/nginx-source/${kin:+$kin-}$version

    if [ -d "$nginx_source" ] \
       || { [ -z "$kin" ] && fetch_packaged_source "$version" "$nginx_source"; } \
       || fetch_upstream_source "$version" "$nginx_source"
    then
        nginx_source+=$sub
        [ -d "$nginx_source" ] || die "there is no $nginx_source"
        return
    fi

    tail -n 20 "$BUILD_DIR/log/source" >&2
    say "the source of ${kin:-nginx} $version could not be fetched; these three" \
        "commands do it, where there is a network:"
    sub=$(basename "$(upstream_url "$version")" .tar.gz)$sub
    [ -z "${NGINX_BIN:-}$kin" ] || set -- "NGINX_BIN=$nginx_bin "
    printf '    %s\n' "curl -fLO $(upstream_url "$version")" \
                      "tar xzf ${sub%%/*}.tar.gz" \
                      "NGINX_SRC=$sub ${1:-}$command_name" >&2
    die "there is no source of ${kin:-nginx} $version"
}

# fetch_packaged_source VERSION DIR: archives drop old versions quickly, so
# another revision of the same nginx will do.
fetch_packaged_source() {
    local version

    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null \
        && scratch_apt "" deb-src || return 1

    # shellcheck disable=SC2016
    for version in $(dpkg-query -W -f '${source:Version}' nginx 2>/dev/null \
                     | grep -F "$1-" || true) \
                   $(apt-cache -c "$scratch_conf" showsrc nginx 2>/dev/null \
                     | sed -n "s/^Version: \($1-.*\)/\1/p")
    do
        say "fetching the source of nginx $version"
        ! fetch_source nginx "$version" "" "$2" || return 0
    done

    return 1
}

# -- what util/build has built -------------------------------------------------

# What an nginx has that is built from sources without flags of their own: more
# than the tests need, less than needs unusual libraries.
# shellcheck disable=SC2034  # util/build, util/matrix and util/sanitize use it
nginx_flags='--error-log-path=stderr --with-threads --with-http_ssl_module
    --with-http_v2_module --with-http_realip_module
    --with-http_auth_request_module --with-http_slice_module
    --with-http_sub_module --with-http_addition_module
    --with-http_gunzip_module --with-http_stub_status_module'

# build: and exports, for tests, the nginx and the module (empty if it is
# inside)
build() {
    bash "$root/util/build"

    export IDEMPOTENCY_MODULE=$BUILD_DIR/ngx_http_idempotency_module.so
    [ -z "${STATIC:-}" ] || IDEMPOTENCY_MODULE=

    TEST_NGINX_BINARY=$BUILD_DIR/nginx
    [ -x "$TEST_NGINX_BINARY" ] || { find_nginx; TEST_NGINX_BINARY=$nginx_bin; }
    export TEST_NGINX_BINARY
}

# need_nginx_tree: exports NGINX_SOURCE_DIR, a configured and whole source tree
# of the nginx that util/build has built for, as the tests in C link the store
# and the digests with nginx's own slab, rbtree and mutex.  Where that had only
# headers, the sources are added.
need_nginx_tree() {
    export NGINX_SOURCE_DIR=$BUILD_DIR/tree

    [ ! -f "$NGINX_SOURCE_DIR/src/core/ngx_slab.c" ] || return 0

    find_nginx
    installed_nginx_source
    NGINX_SOURCE_DIR=$BUILD_DIR/unit-tree

    [ "$NGINX_SOURCE_DIR/src" -ef "$nginx_source/src" ] \
        || { rm -rf "$NGINX_SOURCE_DIR"
             mkdir "$NGINX_SOURCE_DIR"
             ln -s "$nginx_source/src" "$BUILD_DIR/tree/objs" "$NGINX_SOURCE_DIR"; }
}

# free_ports N: sets first_port to the first of N successive loopback ports at
# which nobody listens, below the range that the kernel takes for outgoing
# connections
free_ports() {
    local n port

    for (( n = 0; n < 200; n++ )); do
        first_port=$((10000 + RANDOM % 20000))

        for (( port = first_port; port < first_port + $1; port++ )); do
            ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || continue 2
        done

        return 0
    done

    die "no $1 successive free ports"
}

# -- releases ------------------------------------------------------------------

# module_version: it stands in one place, and t/packaging.t compares the others
module_version() {
    sed -n 's/^#define NGX_HTTP_IDEMPOTENCY_VERSION *"\(.*\)"$/\1/p' \
        "$root"/src/*.h "$root"/src/*/*.h
}

# release_time: the day that CHANGES gives to its newest version, at noon
release_time() {
    date -u -d "$(sed -n '/^Changes with /{s/.* \([0-9]* [A-Z]\)/\1/p;q}' \
                      "$root/CHANGES") 12:00 UTC" +%s
}

# source_tarball FILE [WITHOUT]: of what git knows, or of all that is there but
# builds; without the files whose paths begin so
source_tarball() {
    local name

    name=ngx_http_idempotency_module-$(module_version)

    (cd "$root"
     if [ -e .git ]; then
         git ls-files -z --cached --others --exclude-standard
     else
         find . -path './build*' -prune -o -path './t/servroot*' -prune \
              -o \( -type f -o -type l \) -printf '%P\0'
     fi | while IFS= read -r -d '' file; do
         if [ -e "$file" ] || [ -L "$file" ]; then
             [[ $file == ${2:-/}* ]] || printf '%s\0' "$file"
         fi
     done | LC_ALL=C sort -z \
          | tar --null --no-recursion -T - --format=ustar \
                --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
                --mtime="@$(release_time)" --transform="flags=r;s,^,$name/," -cf - \
          | gzip -9n) >"$1"
}
