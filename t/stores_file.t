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

my $env = Disk->instant->env;

local @ENV{keys %$env} = values %$env;

my %said = map { $_ => begun($_) } qw(strict batched);

for my $mode (sort keys %said) {
    my ($ok, @lines) = ended($said{$mode});

    # a machine that stands still for 2 s syncs nothing, and what comes then is refused
    ($ok, @lines) = ended(begun($mode)) if !$ok && grep $_ =~ $Idempotency::still, @lines;

    ok($ok, "$mode: " . @files . ' files') or diag(grep !/\.\. ok$/, @lines);
}

done_testing();


sub begun {
    local $ENV{TEST_IDEMPOTENCY_STORE} = $_[0];

    open my $out, '-|', "exec prove -j 2 -I '$FindBin::Bin/lib' @files 2>&1 </dev/null"
        or die "prove: $!";

    return $out;
}


sub ended {
    my ($out) = @_;
    my @lines = <$out>;

    return (close $out, @lines);
}
