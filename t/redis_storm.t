#!/usr/bin/perl

# Two nginx over one Redis, and what befalls them: the short form of t/stress/redis,
# and its control. STRESS_SEED repeats the plan, STRESS_SECONDS makes it longer.

# Not in util/test --quick: it takes its time.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Redis;
use Test::More;

plan(skip_all => 'no redis-server') if !Redis->programs;

my $seed = $ENV{STRESS_SEED} // $$;
my $seconds = $ENV{STRESS_SECONDS} // 20;

for (['each trouble in turn', '--seconds', $seconds],
     ['a Redis that forgets', '--seconds', 12, '--control'])
{
    my ($name, @args) = @$_;
    my $said = `'$^X' '$FindBin::Bin/stress/redis' --seed $seed @args 2>&1`;

    is($?, 0, $name) or diag($said);
    note($said);
}

done_testing();
