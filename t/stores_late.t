#!/usr/bin/perl

# Not in util/test --quick

# Tests of requests, once more over a store that answers late, in any order, and
# now and then not at all. util/stores runs all of them, over each kind of store.

use strict;
use warnings;

use FindBin;
use Test::More;

my @files = map { "$FindBin::Bin/$_.t" }
            qw(content crash nested quota release reload replay sent_on similar wait window);

my $root = "$FindBin::Bin/..";
my $dir = ($ENV{BUILD_DIR} // "$root/build") . '/late';
my $static = defined $ENV{IDEMPOTENCY_MODULE} && $ENV{IDEMPOTENCY_MODULE} eq '';

{
    local $ENV{BUILD_DIR} = $dir;
    local $ENV{EXTRA_CFLAGS} = join ' ', $ENV{EXTRA_CFLAGS} // (),
                                         '-DNGX_IDEMPOTENCY_LATE';

    my $said = `bash '$root/util/build' 2>&1 </dev/null`;
    die "no module whose store answers late:\n$said" if $?;
}

$ENV{TEST_IDEMPOTENCY_STORE} = 'late';
$ENV{IDEMPOTENCY_MODULE} = $static ? '' : "$dir/ngx_http_idempotency_module.so";
$ENV{TEST_NGINX_BINARY} = "$dir/nginx" if $static;

for my $file (@files) {
    my $said = `'$^X' -I'$FindBin::Bin/lib' '$file' 2>&1 </dev/null`;

    ok($? == 0, "late: $file" =~ s{\Q$FindBin::Bin/}{}r)
        or diag(grep !/^ok /, split /^/, $said);
}

done_testing();
