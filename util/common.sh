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

    case $absolute in
        *[[:space:]]*) die "white space in a path is more than nginx's build" \
                           "system can take: $absolute" ;;
    esac
}


absolute_path "$root"
root=$absolute
absolute_path "${BUILD_DIR:-$root/build}"
BUILD_DIR=$absolute
export BUILD_DIR


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
    local log=$1 rc=0

    shift
    mkdir -p "$(dirname -- "$log")"

    "$@" >"$log" 2>&1 </dev/null || rc=$?

    if [ "$rc" -ne 0 ]; then
        tail -n 40 "$log" >&2
        say "the whole output is in $log"
    fi

    return "$rc"
}


# -- packages ----------------------------------------------------------------

# On a system without dpkg a package counts as installed if the command that
# it is wanted for is there; libraries are then left to nginx's configure,
# which names each one that it misses.

is_installed() {
    if command -v dpkg-query >/dev/null; then
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" \
          = installed ]
        return
    fi

    case $1 in
        *-dev)   true ;;
        psmisc)  command -v fuser >/dev/null ;;
        *)       command -v "$1" >/dev/null ;;
    esac
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


# has_package NAME: does this release have it?

has_package() {
    [ -n "$(apt-cache -q policy "$1" 2>/dev/null \
            | sed -n 's/^  Candidate: \(.*[^)]\)$/\1/p')" ]
}


# upstream_version PACKAGE: of this release's package, without Debian's part

upstream_version() {
    ! command -v apt-cache >/dev/null \
        || LC_ALL=C apt-cache -q policy "$1" 2>/dev/null \
        | sed -n 's/^  Candidate: \([0-9]*:\)\{0,1\}\([0-9.]*\).*/\2/p'
}


# -- other Debian suites and source packages ---------------------------------

# The machine's own package sources, active ones only, rewritten: for another
# suite, or for source packages.  Nothing but the suite (and the type) changes,
# so that the mirror, the components, the keys and the options stay what this
# machine's owner chose.  Foreign repositories drop out, as their suites are
# not named after the release.
#
# rewrite_sources SUITE TYPES < FILE, SUITE empty: as it is.  The style, one
# line an entry or stanzas (deb822), follows from the file and is kept.

rewrite_sources() {
    local names

    names="$(os_release VERSION_CODENAME) $(os_release UBUNTU_CODENAME)"
    names="$names $(os_release DEBIAN_CODENAME)"

    awk -v suite="$1" -v types="$2" -v names="$names" '

        # the new name of a suite, empty if it is not one of the release;
        # its side suites (security, updates) are kept or left with it

        function renamed(name,   i, main) {
            main = name
            sub(/[-\/].*/, "", main)

            if (!(main in release) || (suite != "" && main != name)) {
                return ""
            }

            return suite == "" ? name : suite
        }

        function all_renamed(list,   n, i, part, name, seen, result) {
            n = split(list, part)

            for (i = 1; i <= n; i++) {
                name = renamed(part[i])

                if (name != "" && !(name in seen)) {
                    seen[name] = 1
                    result = result " " name
                }
            }

            return result
        }

        function end_stanza(   i, field, deb, off, suites, rest) {
            for (i = 1; i <= nfields; i++) {
                field = tolower(key[i])

                if (field == "types") {
                    deb = (" " value[i] " ") ~ /[ \t\n]deb[ \t\n]/

                } else if (field == "suites") {
                    suites = all_renamed(value[i])

                } else if (field == "enabled") {
                    off = tolower(value[i]) ~ /^[ \t]*(no|false|off|0)/

                } else {
                    rest = rest key[i] ":" value[i] "\n"
                }
            }

            if (deb && !off && suites != "") {
                print "Types: " types "\nSuites:" suites "\n" rest
            }

            nfields = 0
        }

        function one_line(line,   options, part, name, n, i) {
            sub(/[ \t]*#.*/, "", line)
            sub(/^deb[ \t]+/, "", line)

            if (match(line, /^\[[^]]*\][ \t]*/)) {
                options = substr(line, 1, RLENGTH)
                line = substr(line, RLENGTH + 1)
            }

            split(line, part)
            name = renamed(part[2])

            if (name == "") {
                return
            }

            sub(/^[^ \t]+[ \t]+[^ \t]+/, "", line)

            n = split(types, type)

            for (i = 1; i <= n; i++) {
                print type[i] " " options part[1] " " name line
            }
        }

        BEGIN {
            n = split(names " stable oldstable oldoldstable testing" \
                      " unstable sid", list)

            for (i = 1; i <= n; i++) {
                release[list[i]] = 1
            }
        }

        /^#/                { next }
        /^deb[ \t]/         { one_line($0); next }
        /^[ \t]*$/          { end_stanza(); next }
        /^[ \t]/            { if (nfields) value[nfields] = value[nfields] \
                                                            "\n" $0; next }
        /^[A-Za-z-]+:/      { i = index($0, ":")
                              key[++nfields] = substr($0, 1, i - 1)
                              value[nfields] = substr($0, i + 1) }
        END                 { end_stanza() }
    '
}


# scratch_apt SUITE TYPES: an apt configuration of its own below BUILD_DIR, for
# looking into a suite (empty: this machine's) without enabling anything on the
# machine.  Sets scratch_conf, to be given as "apt-get -c"; fails if
# the suite can't be had.

scratch_apt() {
    local suite=$1 types=$2 dir sourcelist sourceparts file

    dir=$BUILD_DIR/apt/${suite:-own}-${types// /-}
    scratch_conf=$dir/apt.conf

    # one run needs the lists once; some time later they may be out of date

    [ -z "$(find "$dir/updated" -mmin -60 2>/dev/null)" ] || return 0

    rm -rf "$dir"
    mkdir -p "$dir/sources" "$dir/lists/partial" "$dir/cache/archives/partial"

    eval "$(apt-config shell sourcelist Dir::Etc::sourcelist/f \
                             sourceparts Dir::Etc::sourceparts/d)"

    for file in "$sourcelist" "$sourceparts"/*.list "$sourceparts"/*.sources; do
        [ -f "$file" ] || continue

        rewrite_sources "$suite" "$types" <"$file" \
            >"$dir/sources/${file##*/}"

        [ -s "$dir/sources/${file##*/}" ] || rm "$dir/sources/${file##*/}"
    done

    [ -n "$(ls "$dir/sources")" ] || return 1

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

    if [ -z "$(find "$dir/lists" -name '*_Packages*' -o -name '*_Sources*')" ]
    then
        tell_apt_errors "$dir/log"
        return 1
    fi

    touch "$dir/updated"
}


# tell_apt_errors LOG: what apt said itself, and what helps against the usual
# trouble of a mirror

tell_apt_errors() {
    local line

    while read -r line; do
        say "$line"
    done < <(sed -n '/^[EW]:/p' "$1" | sort -u)

    if grep -q 'is expired\|is not valid yet' "$1"; then
        say "if you trust this mirror all the same: echo" \
            "'Acquire::Check-Valid-Until \"false\";'" \
            "> /etc/apt/apt.conf.d/99check-valid-until"
    fi
}


# The suites of Debian that are newer than this machine's release, the oldest
# first: by the names known here, and by those that the machine knows
# (distro-info-data).  Of its kin, what comes next.

newer_suites() {
    local own name known newer=''

    case " $(os_release ID) $(os_release ID_LIKE) " in
        *" ubuntu "*) echo devel; return ;;
    esac

    own=$(os_release VERSION_CODENAME)
    known=$(sed -n -E 's/^[0-9.]+,[^,]*,([a-z-]+),.*/\1/p' \
                /usr/share/distro-info/debian.csv 2>/dev/null || true)

    for name in $known bullseye bookworm trixie forky duke sid; do
        [[ " $newer " == *" $name "* ]] || newer="$newer $name"
    done

    newer="$newer "
    echo "${newer#* "$own" }"
}


# fetch_newer PACKAGE DIR: puts one package of a newer suite into DIR, one of
# those for any architecture, whose dependencies this machine's release has.
# Each suite is tried in turn, the oldest first; at last those names that the
# archive always has, whatever its releases are called.

fetch_newer() {
    local package=$1 dir=$2 suite

    for suite in $(newer_suites) stable testing unstable experimental; do
        say "looking for $package in $suite"

        scratch_apt "$suite" deb || continue

        if (cd "$dir" && apt-get -c "$scratch_conf" -q download "$package") \
           >"$BUILD_DIR/log/download" 2>&1 </dev/null
        then
            return 0
        fi

        tell_apt_errors "$BUILD_DIR/log/download"
    done

    return 1
}


# fetch_source PACKAGE VERSION SUITE DIR: unpacks a source package into DIR
# (which must not exist); VERSION empty: the newest; SUITE empty: this machine's

fetch_source() {
    local package=$1 version=$2 suite=$3 dir=$4 tmp

    need_packages dpkg-dev
    scratch_apt "$suite" deb-src || return 1

    mkdir -p "$(dirname -- "$dir")"
    tmp=$(mktemp -d "$dir.XXXXXX")

    if (cd "$tmp" && apt-get -c "$scratch_conf" -q source --download-only \
                         --only-source "$package${version:+=$version}" \
                     && dpkg-source --no-check -x ./*.dsc tree) \
           >"$BUILD_DIR/log/source" 2>&1 </dev/null
    then
        mv "$tmp/tree" "$dir"
        rm -rf "$tmp"
        return 0
    fi

    rm -rf "$tmp"
    return 1
}


# nginx_version DIR: the version of a source or header tree

nginx_version() {
    sed -n 's/^#define NGINX_VERSION *"\(.*\)"/\1/p' "$1/src/core/nginx.h"
}


installed_nginx_version() {
    nginx -v 2>&1 | sed -n 's,^nginx version: nginx/\([^ ]*\).*,\1,p'
}


# installed_nginx_source: the whole source of the installed nginx, fetched once;
# sets nginx_source.  If it is the distribution's, as that patched it, else as
# nginx.org has it.

installed_nginx_source() {
    local version

    version=$(installed_nginx_version)
    nginx_source=$BUILD_DIR/nginx-source/$version

    [ ! -d "$nginx_source" ] || return 0

    mkdir -p "$BUILD_DIR/log" "${nginx_source%/*}"

    if ! fetch_packaged_source "$version" "$nginx_source" \
       && ! fetch_upstream_source "$version" "$nginx_source"
    then
        say "the source of nginx $version could not be fetched; these three" \
            "commands do it, where there is a network:"
        printf '    %s\n' "curl -fLO $(upstream_url "$version")" \
                          "tar xzf nginx-$version.tar.gz" \
                          "NGINX_SRC=nginx-$version $command_name" >&2
        die "there is no source of nginx $version"
    fi
}


# fetch_packaged_source VERSION DIR: archives drop old versions quickly, so
# another revision of the same nginx will do.

fetch_packaged_source() {
    local version

    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null \
        || return 1
    scratch_apt "" deb-src || return 1

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


upstream_url() {
    printf '%s/nginx-%s.tar.gz\n' \
           "${NGINX_DOWNLOAD:-https://nginx.org/download}" "$1"
}


fetch_upstream_source() {
    local version=$1 dir=$2 tmp

    command -v curl >/dev/null || need_packages curl ca-certificates
    say "fetching $(upstream_url "$version")"
    tmp=$(mktemp -d "$dir.XXXXXX")

    if quietly "$BUILD_DIR/log/source" \
               curl -fL --retry 2 -o "$tmp/nginx.tar.gz" "$(upstream_url "$version")" \
       && tar -C "$tmp" -xzf "$tmp/nginx.tar.gz"
    then
        mv "$tmp/nginx-$version" "$dir"
        rm -rf "$tmp"
        return 0
    fi

    rm -rf "$tmp"
    return 1
}


# configure_copy FROM TO FLAG...: copies an nginx source tree, without what an
# earlier configure or a version control system left in it, and configures it

configure_copy() {
    local from=$1 to=$2 configure=./configure

    shift 2
    rm -rf "$to"
    mkdir -p "$to"

    tar -C "$from" --exclude=./objs --exclude=./Makefile --exclude=./.git \
        --exclude=./.hg -cf - . | tar -C "$to" -xf -

    # a checkout of nginx's repository keeps it elsewhere

    [ -f "$to/configure" ] || configure=auto/configure

    say "configuring nginx $(nginx_version "$to")"

    FEATURE_CC=${CC:-cc}
    FEATURE_DIR=${FEATURE_DIR:-$BUILD_DIR/features}
    # shellcheck disable=SC2086
    FEATURE_KEY=$($FEATURE_CC --version 2>/dev/null | head -n 1)
    export FEATURE_CC FEATURE_DIR FEATURE_KEY
    mkdir -p "$FEATURE_DIR"

    (cd "$to" && quietly "$BUILD_DIR/log/configure" \
                     sh "$configure" --with-cc="sh $root/util/feature" "$@") \
        || die "configure failed"
}


# -- small things ------------------------------------------------------------

# free_ports N: sets first_port to the first of N successive free loopback ports,
# below the range that the kernel takes for outgoing connections.  (Perl ends if
# it may not read a directory of PERL5LIB, as somebody else's home.)

free_ports() {
    # shellcheck disable=SC2034,SC2016
    first_port=$(env -u PERL5LIB perl -MIO::Socket::INET -e '
        my $n = shift;

        TRY: for (1 .. 200) {
            my $first = 10000 + int(rand(20000));
            my @held;

            for my $port ($first .. $first + $n - 1) {
                my $s = IO::Socket::INET->new(Listen => 1, Proto => "tcp",
                                              LocalAddr => "0.0.0.0",
                                              LocalPort => $port);
                next TRY unless $s;
                push @held, $s;
            }

            print "$first\n";
            exit 0;
        }

        exit 1;
    ' "$1") || die "no $1 successive free ports"
}
