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
            qw(api bodies content crash faults keep keys metrics navigation nested once origin outcome
               own_key quota refusals release reload replay sent_on similar sources uuid7 wait whole
               window workers);

local $ENV{TEST_IDEMPOTENCY_STORE} = 'redis';

my @lines = `prove -j 2 -I '$FindBin::Bin/lib' @files 2>&1 </dev/null`;

is($?, 0, @files . ' files') or diag(grep !/\.\. ok$/, @lines);

done_testing();
