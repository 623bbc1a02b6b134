package Faults;

# The module, built once more with its fault points compiled in: states that no
# request reaches by asking nicely. To be used before Idempotency.

use strict;
use warnings;

use FindBin;

our $static = defined $ENV{IDEMPOTENCY_MODULE} && $ENV{IDEMPOTENCY_MODULE} eq '';

my $late = ($ENV{TEST_IDEMPOTENCY_STORE} // '') eq 'late';
my $root = "$FindBin::Bin/..";
my $dir = ($ENV{BUILD_DIR} // "$root/build") . ($late ? '/late' : '') . '/faults';

{
    local $ENV{BUILD_DIR} = $dir;
    local $ENV{EXTRA_CFLAGS} = join ' ', $ENV{EXTRA_CFLAGS} // (),
                                         '-DNGX_IDEMPOTENCY_FAULTS',
                                         $late ? '-DNGX_IDEMPOTENCY_LATE' : ();

    my $said = `bash '$root/util/build' 2>&1 </dev/null`;
    die "no module with fault points:\n$said" if $?;
}

$ENV{IDEMPOTENCY_MODULE} = $static ? '' : "$dir/ngx_http_idempotency_module.so";
$ENV{TEST_NGINX_BINARY} = "$dir/nginx" if $static;

1;
