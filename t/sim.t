#!/usr/bin/perl

# A world in one process: two nginx of two workers each, made of the real rooms of
# store/, over the real db.c and the real scripts of a Redis, with all troubles
# that there are, decided by a seed. Here are those seeds that ever failed, and
# some hundred others, the same each time: what fails here is a finding. Over a
# Redis they run again in each real server that is here. Fresh ones by util/sim,
# which also tells a seed's story.
#
# Environment: TEST_SIM_SECONDS: that many seconds of fresh ones, too

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use Resp;
use Test::More;

my $root = dirname(dirname(abs_path(__FILE__)));

plan skip_all => 'no NGINX_SOURCE_DIR: util/test sets it' unless $ENV{NGINX_SOURCE_DIR};
plan skip_all => 'no Lua 5.1 to link' unless -e ($ENV{LUA_INCLUDE} // '/usr/include/lua5.1') . '/lua.h';

open my $objs, '<', "$ENV{NGINX_SOURCE_DIR}/objs/ngx_auto_config.h" or die $!;
plan skip_all => 'no SQLite to link' unless grep /^#define NGX_IDEMPOTENCY_SQLITE /, <$objs>;

# the sanitizers know nothing of libraries that are one program seven times
plan skip_all => 'built with sanitizers' if ($ENV{EXTRA_CFLAGS} // '') =~ /-fsanitize/;

# ... or were unpacked by util/valkey
$ENV{PATH} .= ':' . ($ENV{BUILD_DIR} // "$root/build") . '/valkey/bin';

my $fixed = "--list '$root/t/sim/seeds' --from 1 --local 0 --seconds 300";

holds('never twice, and an end for whoever waits', "run $fixed --count 300");
holds("... over a real $_", "server $_ $fixed --count 150") for grep seven($_), Resp::servers();

holds('... in fresh worlds', "run --seconds $ENV{TEST_SIM_SECONDS}") if $ENV{TEST_SIM_SECONDS};

done_testing();

# The scripts' flags are of Redis 7.
sub seven {
    my ($program) = @_;

    return qx($program --version) =~ /v=(\d+)/ && $1 >= 7;
}

sub holds {
    my ($what, $run) = @_;

    my $said = qx(bash '$root/t/sim/'$run 2>&1);

    ok($? == 0 && $said =~ /^# [1-9]\d* seeds in.* 0 failed/m, $what)
        ? note($said =~ /^(# \d+ seeds in.*)/m) : diag($said);
}
