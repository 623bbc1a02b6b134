#!/usr/bin/perl

# What the commands in util/ share, where it can break: that an error ends them
# wherever it happens, that they say what failed and why, how the module is
# compiled, and which tests are quick.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Copy qw(copy);
use File::Path qw(make_path);
use File::Temp ();
use lib 't/lib';

use Commands;
use Test::More;

my $root = dirname(dirname(abs_path(__FILE__)));
my $tmp = File::Temp->newdir('idempotency-commands-XXXXXX', TMPDIR => 1);

chmod 0755, $tmp;


# --- an error ends the command -----------------------------------------------

{
    my %shape = (
        'called'                  => 'fails',
        'assigned'                => 'x=$(fails); echo went on',
        'assigned, tolerated'     => 'x=$(fails) || true; echo went on',
        'local'                   => 'f() { local x=$(fails); echo went on; }; f',
        'local, where errors do not count'
            => 'f() { local x=$(fails); echo went on; }; if f; then echo went on; fi',
        'assigned, where errors do not count'
            => 'f() { x=$(fails); echo went on; }; f || echo went on; echo went on',
        'compared'                => '[ -n "$(fails)" ] || echo went on; echo went on',
        'in an array'             => 'a=("$(fails)" "$(fails)"); echo went on',
        'two deep'                => 'x=$(y=$(fails); echo went on) || true; echo went on',
        'in a pipeline'           => 'true | fails | cat || true; echo went on',
        'read from'               => 'while read -r x; do :; done < <(fails); echo went on',
        'in the background'       => 'fails & wait $! || true; echo went on',
    );

    for my $name (sort keys %shape) {
        my ($status, $out) = bash(<<"END");
fails() { die "out of order"; }
trap 'echo cleaned up' EXIT
$shape{$name}
echo went on
END

        isnt($status, 0, "die, $name: exit status");
        like($out, qr/: out of order$/m, "die, $name: says why");
        unlike($out, qr/went on/, "die, $name: nothing follows");
        like($out, qr/cleaned up\n\z/, "die, $name: but the end of the command");
    }
}


# Functions that may die print no result: in $(...), in the arguments of a
# command, that would be run once more, with nothing in its place.

for my $name (map { s/^\Q$root\E\///r } commands()) {
    my $text = join '', map { slurp($_) } "$root/util/common.sh", "$root/$name";
    my %body;

    $body{$1} = $2 while $text =~ /^(\w+)\(\) \{\n(.*?)^\}$/msg;

    my %dies = (die => 1);
    my $known = 0;

    while ($known != keys %dies) {
        $known = keys %dies;

        for my $function (keys %body) {
            my $any = join '|', keys %dies;

            # not the text of another program in it
            (my $code = $body{$function}) =~ s/'[^']*'//g;
            $code =~ s/^\s*#.*//mg;
            $dies{$function} = 1 if $code =~ /(?<![\w\$-])(?:$any)(?![\w-])/;
        }
    }

    my $any = join '|', keys %dies;
    my @wrong = $text =~ /((?:\$\(|<\(|`)\s*(?:$any)\b.*)/g;

    ok($dies{absolute_path}, "$name: what may die is found");
    is("@wrong", '', "$name: and is nowhere asked for a result");
}


# --- somebody else's home ------------------------------------------------------

SKIP: {
    skip 'not root', 1 if $>;

    make_path("$tmp/tree/util", "$tmp/private");
    chmod 0700, "$tmp/private";
    copy("$root/util/common.sh", "$tmp/tree/util/common.sh") or die $!;

    local $ENV{PERL5LIB} = "$tmp/private";
    my ($status, $out) = run('setpriv', '--reuid', scalar getpwnam('nobody'),
                             '--regid', (getpwnam('nobody'))[3], '--clear-groups', '--',
                             'bash', '-c', ". $tmp/tree/util/common.sh;
                                            free_ports 1; echo \"port \$first_port\"");

    like($out, qr/^port \d+$/m, 'a free port, where PERL5LIB may not be read');
}


# --- the module is compiled as nginx was ------------------------------------------

{
    my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';
    my $module = Idempotency::module_path();
    my $flags = `$nginx -V 2>&1`;
    my $elf = -f $module ? (run('readelf', '-Wdls', '--dyn-syms', $module))[1] : '';

    my @hardening = (
        [qr/-fstack-protector/, qr/\b__stack_chk_fail\b/, 'stack protector'],
        [qr/-D_FORTIFY_SOURCE=[1-3]/, qr/\b__\w+_chk\b/, '_FORTIFY_SOURCE'],
        [qr/-z,? ?relro/, qr/\bGNU_RELRO\b/, 'relocations are read-only'],
        [qr/-z,? ?now/, qr/\bBIND_NOW\b/, '... all of them'],
    );

    for my $h (@hardening) {
        my ($flag, $mark, $name) = @$h;

        SKIP: {
            skip 'the module is in the nginx', 1 if $elf eq '';
            skip "nginx itself was built without: $name", 1 if $flags !~ $flag;
            like($elf, $mark, "nginx's hardening: $name");
        }
    }
}


# --- package sources -----------------------------------------------------------

SKIP: {
    skip 'no apt here', 2 if system 'command -v apt-config >/dev/null';

    make_path("$tmp/parts");
    spew("$tmp/list", <<'END');
# deb http://old/debian bookworm main
deb [arch=amd64 signed-by=/k] http://one/debian bookworm main contrib
deb-src http://one/debian bookworm main
deb http://one/security bookworm-security main
deb http://two/debian bookworm/updates main
deb http://else/where elsewhere main
deb http://three/debian  oldstable  main
END
    spew("$tmp/parts/a.sources", <<'END');
# a comment
Types: deb deb-src
URIs: http://four/debian
Suites: bookworm
 bookworm-updates other
Components: main
Signed-By: /k4

Types: deb
URIs: http://five/debian
Suites: bookworm
Enabled: no

Types: deb
URIs: http://six/elsewhere
Suites: elsewhere
END
    spew("$tmp/parts.conf", <<"END");
Dir::Etc::parts "/dev/null";
Dir::Etc::main "/dev/null";
Dir::Etc::sourcelist "$tmp/list";
Dir::Etc::sourceparts "$tmp/parts";
END

    local $ENV{APT_CONFIG} = "$tmp/parts.conf";
    local $ENV{BUILD_DIR} = "$tmp/build-parts";

    for (['' => 'deb-src', <<'END'], [trixie => 'deb', <<'END2']) {
deb-src [arch=amd64 signed-by=/k] http://one/debian bookworm main contrib
deb-src http://one/security bookworm-security main
deb-src http://two/debian bookworm/updates main
deb-src http://three/debian  oldstable  main
Types: deb-src
URIs: http://four/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /k4

END
deb [arch=amd64 signed-by=/k] http://one/debian trixie main contrib
deb http://three/debian  trixie  main
Types: deb
URIs: http://four/debian
Suites: trixie
Components: main
Signed-By: /k4

END2
        my ($suite, $type, $expected) = @$_;
        my (undef, $out) = bash(<<"END");
os_release() { [ "\$1" != VERSION_CODENAME ] || echo bookworm; }
apt-get() { false; }
scratch_apt "$suite" "$type" || true
cat "$tmp/build-parts/apt/${\($suite || 'own')}-$type/sources/machine."{list,sources}
END
        is($out, $expected, "the machine's package sources, for " . ($suite || 'itself'));
    }
}


# --- packages of another suite -------------------------------------------------

SKIP: {
    skip 'no apt here', 12 if system 'command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null';

    my $suites = "$tmp/archive/dists";
    my $past = 'Thu, 01 Jan 2026 00:00:00 UTC';

    archive('forky', $past, 'Fri, 02 Jan 2026 00:00:00 UTC');
    archive('sid', $past);

    # the machine's own settings stay out of it
    spew("$tmp/sources.list", "deb [trusted=yes] file:$tmp/archive stable main\n");
    spew("$tmp/apt.conf", <<"END");
Dir::Etc::parts "/dev/null";
Dir::Etc::main "/dev/null";
Dir::Etc::sourcelist "$tmp/sources.list";
Dir::Etc::sourceparts "/dev/null";
Acquire::Check-Valid-Until "true";
END

    local $ENV{APT_CONFIG} = "$tmp/apt.conf";
    local $ENV{BUILD_DIR} = "$tmp/build";

    my $script = <<"END";
os_release() { case \$1 in ID) echo debian ;; VERSION_CODENAME) echo bookworm ;; esac; }
mkdir -p "$tmp/build/log" "$tmp/fetched"
fetch_newer idempotency-test "$tmp/fetched" || { echo nowhere; exit 1; }
ls "$tmp/fetched"
END

    my ($status, $out) = bash($script);

    is($status, 0, 'a package that a later suite has is found') or diag($out);
    like($out, qr/^idempotency-test_1_all\.deb$/m, '... and fetched');
    like($out, qr/in trixie\n.*in forky\n.*in sid\n/s, '... each suite tried in turn');
    unlike($out, qr/in sid\n.*looking for/s, '... and none further');
    like($out, qr/^[^:]+: E: .*trixie/m, '... what apt said of a suite that is not there');
    like($out, qr/^[^:]+: E: .*forky.*(?:is expired|is not valid)/m, '... and of one out of date');
    like($out, qr/Check-Valid-Until "false"/, '... and what helps');

    system 'rm', '-rf', "$suites/sid", "$tmp/build";
    ($status, $out) = bash($script);

    is($status, 1, 'a package that no suite has');
    like($out, qr/nowhere\n\z/, '... is told');
    like($out, qr/in forky\n.*in duke\n.*in sid\n.*in testing\n.*in unstable\n/s,
         '... after those behind the known ones, and the names that every archive has');
    like($out, qr/^[^:]+: E: .*forky.*is expired/m, '... with what apt said');

    # what is missing is found before anything is installed
    my $text = slurp("$root/util/test");
    ok(index($text, "\nfind_packages\n") > 0
       && index($text, "\nfind_packages\n") < index($text, "\nbuild\n")
       && index($text, "\nfind_packages\n") < index($text, 'need_packages "'),
       'util/test looks for everything before it installs something');
}


# --- an nginx from elsewhere ----------------------------------------------------

SKIP: {
    skip 'no headers of nginx from a package here', 8
        unless -d '/usr/share/nginx/src' && !system 'command -v curl >/dev/null';

    make_path("$tmp/bin", "$tmp/mirror", "$tmp/nginx-9.9.9/src/core");
    spew("$tmp/bin/nginx", <<'END');
#!/bin/sh
echo 'nginx version: nginx/9.9.9' >&2
[ "$1" != -V ] || echo 'configure arguments: --with-compat --with-cc-opt='\''-O2 -g'\' >&2
END
    chmod 0755, "$tmp/bin/nginx";

    local $ENV{PATH} = "$tmp/bin:$ENV{PATH}";
    local $ENV{BUILD_DIR} = "$tmp/build-elsewhere";
    local $ENV{NGINX_DOWNLOAD} = "file://$tmp/mirror";
    delete local @ENV{qw(NGINX_SRC STATIC NGINX_FLAGS EXTRA_CFLAGS)};

    my ($status, $out) = run('bash', "$root/util/build");

    isnt($status, 0, "an nginx that is not the distribution's, its source out of reach");
    like($out, qr/nginx 9\.9\.9 is not this release's/, '... is known as such');
    like($out, qr{^\ +curl\ -fLO\ \Q$ENV{NGINX_DOWNLOAD}\E/nginx-9\.9\.9\.tar\.gz\n
                  \ +tar\ xzf\ nginx-9\.9\.9\.tar\.gz\n
                  \ +NGINX_SRC=nginx-9\.9\.9\ util/build\n}mx,
         '... and the three commands are told');
    ok(!-e "$tmp/build-elsewhere/tree", '... nothing else was built instead');

    # one that only says what it was asked
    spew("$tmp/nginx-9.9.9/src/core/nginx.h", qq(#define NGINX_VERSION "9.9.9"\n));
    spew("$tmp/nginx-9.9.9/configure", qq(printf '<%s>' "\$\@" > $tmp/asked; exit 1\n));
    run('tar', '-C', $tmp, '-czf', "$tmp/mirror/nginx-9.9.9.tar.gz", 'nginx-9.9.9');

    ($status, $out) = run('bash', "$root/util/build");

    like($out, qr/fetching file:.*configuring nginx 9\.9\.9/s, 'within reach, it is fetched');
    like(slurp("$tmp/asked"), qr/<--with-compat><--with-cc-opt=-O2 -O2 -g >.*<--add-dynamic-module=/,
         '... and configured as the installed one was');

    unlink "$tmp/asked";
    local $ENV{NGINX_SRC} = "$tmp/nginx-9.9.9";
    run('bash', "$root/util/build");
    like(slurp("$tmp/asked"), qr/<--with-compat><--with-cc-opt=-O2 -O2 -g >.*<--add-dynamic-module=/,
         'given as NGINX_SRC: the same');

    local $ENV{NGINX_FLAGS} = '--with-threads';
    run('bash', "$root/util/build");
    like(slurp("$tmp/asked"), qr/<--with-threads><--with-cc-opt=-O2  >.*<--add-dynamic-module=/,
         '... unless other flags are given');
}


# --- how it is compiled -----------------------------------------------------------

{
    # which of the system's features its headers have, nginx's say
    my @wrong = grep { slurp($_) =~ /^#include +(.*)/m && $1 !~ /"ngx|"\w|<ngx_/ }
                glob "$root/src/{,*/,*/*/}*.c";

    is("@wrong", '', "nginx's headers stand before the system's");
}


# --- nginx's kin ------------------------------------------------------------------

{
    my %says = (
        openresty => "nginx version: openresty/9.9.9.1\n",
        angie     => "Angie version: Angie/1.2.3\nnginx version: nginx/9.9.9\n",
        freenginx => "nginx version: freenginx/9.9.9\n",
        tengine   => "Tengine version: Tengine/1.2.3\nnginx version: nginx/9.9.9\n",
        plus      => "nginx version: nginx/9.9.9 (nginx-plus-r99)\n",
    );

    make_path("$tmp/kin", "$tmp/kin-mirror");

    for my $kin (sort keys %says) {
        my $bin = "$tmp/kin/$kin";

        spew($bin, "#!/bin/sh\ncat >&2 <<'E'\n$says{$kin}E\n"
                   . "[ \"\$1\" != -V ] || echo 'configure arguments: --with-compat --add-module=../lua' >&2\n");
        chmod 0755, $bin;

        local $ENV{NGINX_BIN} = $bin;
        my ($status, $out) = bash('find_nginx; echo "$kin, $nginx_is"');
        is($out, "$kin, 9.9.9\n", "$kin is known by what it says");
    }

    # where it is alone, no second nginx is installed

    my $alone = 'command() { [ "$2" != nginx ] && builtin command "$@"; }; find_nginx; echo "$nginx_bin"';

    for my $kin (qw(openresty angie freenginx tengine)) {
        make_path("$tmp/kin-$kin");
        copy("$tmp/kin/$kin", "$tmp/kin-$kin/$kin");
        chmod 0755, "$tmp/kin-$kin/$kin";

        local $ENV{PATH} = "$tmp/kin-$kin:$ENV{PATH}";
        is((bash($alone))[1], "$tmp/kin-$kin/$kin\n", "$kin alone is found");
    }

    local $ENV{NGINX_DOWNLOAD} = "file://$tmp/kin-mirror";
    local $ENV{BUILD_DIR} = "$tmp/build-kin";
    delete local @ENV{qw(NGINX_SRC STATIC NGINX_FLAGS EXTRA_CFLAGS)};
    local $ENV{NGINX_BIN} = "$tmp/kin/openresty";

    SKIP: {
        skip 'no libraries to build with', 5
            if system 'command -v curl && dpkg -s libpcre2-dev libssl-dev zlib1g-dev libsqlite3-dev >/dev/null 2>&1';

        my ($status, $out) = run('bash', "$root/util/build");

        isnt($status, 0, 'OpenResty, its source out of reach');
        like($out, qr{^\ +curl\ -fLO\ \S+/openresty-9\.9\.9\.1\.tar\.gz\n
                      \ +tar\ xzf\ openresty-9\.9\.9\.1\.tar\.gz\n
                      \ +NGINX_SRC=openresty-9\.9\.9\.1/bundle/nginx-9\.9\.9\ NGINX_BIN=\Q$ENV{NGINX_BIN}\E\ util/build\n}mx,
             '... what to do is told');

        my $tree = "$tmp/openresty-9.9.9.1/bundle/nginx-9.9.9";
        make_path("$tree/src/core");
        spew("$tree/src/core/nginx.h", qq(#define NGINX_VERSION "9.9.9"\n));
        spew("$tree/configure", qq(printf '<%s>' "\$\@" > $tmp/asked; exit 1\n));
        run('tar', '-C', $tmp, '-czf', "$tmp/kin-mirror/openresty-9.9.9.1.tar.gz", 'openresty-9.9.9.1');
        unlink "$tmp/asked";

        ($status, $out) = run('bash', "$root/util/build");

        like($out, qr/configuring nginx 9\.9\.9/, '... within reach, it is fetched');
        like(slurp("$tmp/asked"), qr/<--with-compat>.*<--add-dynamic-module=/,
             '... and configured as that one was');
        unlike(slurp("$tmp/asked"), qr/--add-module/, '... without what that one has inside');
    }

    $ENV{NGINX_BIN} = "$tmp/kin/none";
    my ($status, $out) = run('bash', "$root/util/build");
    like($out, qr/NGINX_BIN=\S+ is no program/, 'an NGINX_BIN that is not there is told');
    isnt($status, 0, '... and no other is taken for it');
}


# --- util/test -----------------------------------------------------------------

{
    my $make = sub { spew("$tmp/$_[0].t", "use Test::More;\n$_[1]") };

    $make->(good => 'ok(1) for 1 .. 3; done_testing();');
    $make->(bad => 'ok($_ != 2) for 1 .. 3; done_testing();');
    $make->(ends => 'plan tests => 3; ok(1); exit 3;');

    my ($status, $out) = run('bash', "$root/util/test", "$tmp/good.t");

    is($status, 0, 'util/test FILE: exit status 0') or diag($out);
    like($out, qr/^Files=1, Tests=3, .*\nResult: PASS\n\z/m, "... and prove's summary at the end");

    ($status, $out) = run('bash', "$root/util/test", map { "$tmp/$_.t" } qw(good bad ends));

    isnt($status, 0, 'util/test FILES, two of which fail: exit status');
    like($out, qr{^util/test:   \S+/bad\.t +1 of 3 checks failed \(2\): .* util/test -v \S+/bad\.t$}m,
         '... one line for each: how many checks, which ones, and what to do');
    like($out, qr{^util/test:   \S+/ends\.t +.*[Bb]ad plan.* util/test -v \S+/ends\.t$}m,
         '... or that it ended too early');
    unlike($out, qr{^util/test:   \S+/good\.t}m, '... and none for what passed');
    like($out, qr{^util/test: the whole output is in (\S+)$}m, '... and where the output is');
    like($out, qr/^Files=3, Tests=7, .*\nResult: FAIL\n\z/m, "... prove's summary at the end");

    my ($all, $quick) = map { [run('bash', "$root/util/test", @$_, '--dry')] }
                        [], ['--quick'];
    my %in_all = map { $_ => 1 } $all->[1] =~ m{^(t/\S+\.t)$}mg;
    my %in_quick = map { $_ => 1 } $quick->[1] =~ m{^(t/\S+\.t)$}mg;

    is(join(' ', sort keys %in_all), join(' ', map { s/^\Q$root\E\///r } sort glob "$root/t/*.t"),
       'util/test runs all there are');
    ok(!$in_quick{$_}, "--quick leaves out $_")
        for qw(t/browser.t t/wordpress.t t/stress.t t/storm.t t/demo.t);
    ok($in_quick{$_}, "--quick has $_") for qw(t/keys.t t/unit.t t/commands.t);

    # a machine that has none of the packages, and they are out of reach: it says which
    make_path("$tmp/bare");

    for (qw(dpkg-query apt-get apt-cache)) {
        spew("$tmp/bare/$_", "#!/bin/sh\n");
        chmod 0755, "$tmp/bare/$_";
    }

    local $ENV{PATH} = "$tmp/bare:$ENV{PATH}";

    for (['--quick', ''], ["$root/t/keys.t", ''], ["$root/t/order.t", 1], ["$root/t/page.t", 1], ['', 1]) {
        my ($what, $all) = @$_;
        my (undef, $wants) = run('bash', "$root/util/test", $what || (), '--dry');

        like($wants, qr/don't have: .*curl/s, "util/test $what: what it wants");
        is($wants =~ /no libnginx-mod-http-lua\b/, $all, '... no module for nginx, unless a test asks for it');
        is($wants =~ /don't have: .*chromium/s, $all, '... nor a browser');
    }

    my @browser = grep { slurp("$root/$_") =~ /^use Browser;/m } sort keys %in_all;
    cmp_ok(scalar @browser, '>=', 2, 'some tests use a browser');
    is(join(' ', grep { $in_quick{$_} } @browser), '', '... none of them is quick');
}


done_testing();


# --- helpers -------------------------------------------------------------------


# bash(TEXT): as a command in util/ that has sourced common.sh
sub bash {
    return run('bash', '-c', ". $root/util/common.sh\n$_[0]", "$root/util/a-command");
}


# commands: all that source util/common.sh
sub commands {
    return grep { slurp($_) =~ m{^\. ".*common\.sh"}m }
           grep { -f } glob "$root/util/* $root/bench/* $root/fuzz/*";
}


# archive(SUITE, DATE, VALID_UNTIL): one with a single package
sub archive {
    my ($suite, $date, $until) = @_;
    my $dir = "$tmp/archive/dists/$suite";
    my $deb = "$tmp/archive/idempotency-test_1_all.deb";
    my $arch = qx(dpkg --print-architecture);
    chomp $arch;

    make_path("$tmp/package/DEBIAN", "$dir/main/binary-$arch");

    my $control = <<'END';
Package: idempotency-test
Version: 1
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: nothing
END

    spew("$tmp/package/DEBIAN/control", $control);
    run('dpkg-deb', '--build', "$tmp/package", $deb);

    my ($size, $sum) = (-s $deb, (run('sha256sum', $deb))[1] =~ /^(\w+)/);
    my $packages = "${control}Filename: idempotency-test_1_all.deb\nSize: $size\nSHA256: $sum\n\n";

    spew("$dir/main/binary-$arch/Packages", $packages);
    ($sum) = (run('sha256sum', "$dir/main/binary-$arch/Packages"))[1] =~ /^(\w+)/;

    spew("$dir/Release", join '', "Suite: $suite\nCodename: $suite\n",
               "Architectures: $arch\nComponents: main\nDate: $date\n",
               $until ? "Valid-Until: $until\n" : '',
               "SHA256:\n $sum ${\length $packages} main/binary-$arch/Packages\n");
}
