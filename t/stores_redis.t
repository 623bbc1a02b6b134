#!/usr/bin/perl

# Not in util/test --quick

# Tests of requests, once more with a Redis behind each zone. util/stores runs all
# of them, over each kind of store.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Redis;
use Test::More;

plan(skip_all => 'no redis-server') if !Redis->programs;

my @files = map { "'$FindBin::Bin/$_.t'" }
            qw(bodies content crash keep keys origin outcome quota release reload replay similar
               sources states uuid7 wait window workers);

local $ENV{TEST_IDEMPOTENCY_STORE} = 'redis';

my @lines = `prove -j 2 -I '$FindBin::Bin/lib' @files 2>&1 </dev/null`;

is($?, 0, @files . ' files') or diag(grep !/\.\. ok$/, @lines);

done_testing();
