#!/usr/bin/perl

# Not in util/test --quick

# Tests of requests, once more with a file behind each zone. util/stores runs all
# of them, in each mode, and over each other kind of store.

use FindBin;
use lib "$FindBin::Bin/lib";
use Disk;
use Idempotency;
use Restart;
use Test::More;

if (my $why = no_state()) {
    plan(skip_all => "no file: $why");
}

my @files = map { "'$FindBin::Bin/$_.t'" }
            qw(content crash filters keys nested quota redirects release reload replay sent_on
               similar uuid7 wait window);

# both modes at once

my %said;
my $env = Disk->instant->env;

local @ENV{keys %$env} = values %$env;

for my $mode (qw(strict batched)) {
    local $ENV{TEST_IDEMPOTENCY_STORE} = $mode;

    open $said{$mode}, '-|', "exec prove -j 2 -I '$FindBin::Bin/lib' @files 2>&1 </dev/null"
        or die "prove: $!";
}

for my $mode (sort keys %said) {
    my $out = $said{$mode};
    my @lines = <$out>;

    ok(close $out, "$mode: " . @files . ' files') or diag(grep !/\.\. ok$/, @lines);
}

done_testing();
