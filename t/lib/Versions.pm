package Versions;

# The module, and the same once more as that of the next version of fingerprints:
# it digests by another encoding, and ignores one cookie more, SINCE-VERSION-2. To
# be used before Idempotency.
#
#    of_version(N): options of nginx(), for either: its module, without a zone

use strict;
use warnings;

use Exporter 'import';
use FindBin;

our @EXPORT = qw(of_version);

our $static = defined $ENV{IDEMPOTENCY_MODULE} && $ENV{IDEMPOTENCY_MODULE} eq '';

my $root = "$FindBin::Bin/..";
my $dir = ($ENV{BUILD_DIR} // "$root/build") . '/version';

if (!$static) {
    local $ENV{BUILD_DIR} = $dir;
    local $ENV{EXTRA_CFLAGS} = join ' ', $ENV{EXTRA_CFLAGS} // (),
                                         '-DNGX_IDEMPOTENCY_FINGERPRINT_VERSION=2';

    my $said = `bash '$root/util/build' 2>&1 </dev/null`;
    die "no module of the next version:\n$said" if $?;
}


sub of_version {
    my ($n) = @_;

    return (module => 0, zone => 0,
            modules => [ $n == 1 ? Idempotency::module_path()
                                 : "$dir/ngx_http_idempotency_module.so" ]);
}

1;
