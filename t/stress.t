#!/usr/bin/perl

# The short form of the stress test; util/stress runs the long one. Its seed is
# said, and STRESS_SEED repeats it.

# Not in util/test --quick: it takes its time.

use strict;
use warnings;

use FindBin;

my $seconds = $ENV{STRESS_SECONDS} // 30;
my ($state) = ($ENV{TEST_IDEMPOTENCY_STORE} // '') =~ /^(strict|batched)$/;

if (($ENV{TEST_IDEMPOTENCY_STORE} // '') eq 'redis') {
    print "1..0 # SKIP t/redis_storm.t is this, over a Redis\n";
    exit;
}

exec $^X, "$FindBin::Bin/stress/run", '--seconds', $seconds,
     $state ? ('--state', $state) : (),
     defined $ENV{STRESS_SEED} ? ('--seed', $ENV{STRESS_SEED}) : ()
    or die "$FindBin::Bin/stress/run: $!\n";
