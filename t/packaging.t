#!/usr/bin/perl

# What is released: a tarball that comes out the same, its digest and what is in it;
# one version, wherever it stands; the manual page.

use strict;
use warnings;

use lib 't/lib';
use Commands qw(run);
use Pages;
use Test::More;

use Digest::SHA;
use File::Temp ();
use JSON::PP;

my $tmp = File::Temp->newdir('idempotency-releases-XXXXXX', TMPDIR => 1);
my ($version) = join('', map { text(s{^\Q$Pages::root\E/}{}r) }
                         glob "$Pages::root/src/{,*/}*.h")
                =~ /^#define NGX_HTTP_IDEMPOTENCY_VERSION +"(.*)"$/m;


# --- one version ------------------------------------------------------------------

like($version, qr/^\d+\.\d+\.\d+(?:-rc\d+)?$/, "version $version");

my ($newest) = text('CHANGES') =~ /^Changes with \w+ (\S+) /m;
is($newest, $version, 'CHANGES begins with it');

my ($debian) = text('debian/changelog') =~ /^\S+ \(([^)]*)-[^-)]+\)/;
is($debian, $version =~ s/-rc/~rc/r, 'so does debian/changelog');

my %also = ('packaging/rpm/nginx-mod-http-idempotency.spec' =>
                [qr/^%global upstream +(\S+)/m, qr/^Version: +(\S+)/m],
            'packaging/alpine/APKBUILD' => [qr/^_version=(\S+)/m, qr/^pkgver=(\S+)/m],
            'packaging/pkg-oss/Makefile.module-idempotency' =>
                [qr/_module-(\S+)\.tar\.gz$/m, qr/--add-dynamic-module=\S+_module-(\S+)$/m]);

for my $file (sort keys %also) {
    is_deeply([map { (text($file) =~ $_)[0] =~ s/[~_]rc/-rc/r } @{$also{$file}}],
              [($version) x 2], "... and $file");
}


# --- other packages, as far as they can be read here --------------------------------

SKIP: {
    skip('no rpmspec here', 2) if system 'command -v rpmspec >/dev/null 2>&1';

    my ($status, $out) = run('rpmspec', '-q', '--qf', '%{name} %{version}',
                             "$Pages::root/packaging/rpm/nginx-mod-http-idempotency.spec");

    is($status, 0, 'rpmspec reads the spec') or diag($out);
    like($out, qr/^nginx-mod-http-idempotency \Q@{[$version =~ s{-rc}{~rc}r]}\E$/m, '... its version');
}

{
    my ($status, $out) = run('sh', '-n', "$Pages::root/packaging/alpine/APKBUILD");
    is($status, 0, "a shell reads Alpine's") or diag($out);

    for my $name ('MODULES', map { "MODULE_${_}_idempotency" } qw(CONFARGS SOURCES BUILD_DEPENDS)) {
        my $what = qx{printf 'all:;\@echo "\$($name)"\n' | make -s --no-print-directory -f $Pages::root/packaging/pkg-oss/Makefile.module-idempotency -f - all 2>&1};

        like($what, qr/^.*(?:idempotency|sqlite)/, "make reads that of nginx.org: $name") or diag($what);
    }
}

{
    my @steps = text('Dockerfile') =~ /^([A-Z]+) /mg;
    is("@steps", 'ARG FROM COPY RUN FROM COPY RUN RUN', 'the Dockerfile has its steps');
    ok(-e "$Pages::root/$_", "... and $_, which it runs") for map { m{/module/(\S+)}g } text('Dockerfile');
}


# --- a release --------------------------------------------------------------------

{
    local $ENV{BUILD_DIR} = "$tmp/build";

    my ($status, $out) = run('bash', "$Pages::root/util/release", '--trial', "$tmp/release");

    is($status, 0, 'util/release --trial') or diag($out);
    like($out, qr/made twice, and the same/, '... made it twice');

    my $name = "ngx_http_idempotency_module-$version";
    my $tarball = "$tmp/release/$name.tar.gz";
    my $sums = slurp("$tmp/release/$name.sha256");

    like($sums, qr/^\Q@{[sum($tarball)]}\E  \Q$name.tar.gz\E$/m, '... its SHA-256');

    my %in = map { s{^\Q$name\E/}{}r => 1 } split /\n/, qx{tar -tzf $tarball};

    is(join(' ', grep { !$in{$_} } qw(config README.md LICENSE util/build debian/control)), '',
       '... and it is whole');
    is(join(' ', grep { m{^(?:build|\.git/)} } sort keys %in), '', '... nothing that was built');

    my $bill = decode_json(slurp("$tmp/release/$name.spdx.json"));
    my %file = map { substr($_->{fileName}, 2) => $_ } @{$bill->{files}};
    my ($sha256) = map { $_->{checksumValue} } grep { $_->{algorithm} eq 'SHA256' }
                   @{$file{config}{checksums}};

    is($bill->{spdxVersion}, 'SPDX-2.3', 'SPDX');
    is($bill->{packages}[0]{versionInfo}, $version, '... of this version');
    is(join(' ', grep { !$file{$_} } grep { !m{/$} } sort keys %in), '', '... names all files');
    is($sha256, sum("$Pages::root/config"), '... and their digests');

    my @unnamed = qw(debian/changelog debian/control packaging/alpine/APKBUILD
                     packaging/pkg-oss/nginx-module-idempotency.xml packaging/rpm/nginx-mod-http-idempotency.spec);

    system('tar', '-C', "$tmp", '-xzf', $tarball) == 0 or die 'tar';
    ($status, $out) = run('bash', "$tmp/$name/util/release", "$tmp/named");
    is($status, 1, 'util/release, while the packages have no maintainer: refuses');
    is(join(' ', sort $out =~ m{\b((?:debian|packaging)/\S+)}g),
       "@unnamed", '... and says where to write one');

    system('sed', '-i', 's/packages@idempotency.example/me@here.net/', map { "$tmp/$name/$_" } @unnamed) == 0 or die 'sed';
    ($status, $out) = run('bash', "$tmp/$name/util/release", "$tmp/named");
    is($status, 0, '... with one it makes a release') or diag($out);
}


# --- the manual page --------------------------------------------------------------

{
    my $page = qx{perl $Pages::root/packaging/man $Pages::root/docs/directives.md};
    my @directives = text('docs/directives.md') =~ /^### (\w+)$/mg;

    is_deeply([$page =~ /^\.SS (\w+)$/mg], \@directives, 'the manual page has each directive');
    is(() = $page =~ /^Syntax: /mg, @directives, '... and its form');
}

done_testing();


sub sum { return Digest::SHA->new(256)->addfile($_[0])->hexdigest }


sub slurp {
    open my $f, '<', $_[0] or return '';
    local $/;
    return scalar readline $f;
}
