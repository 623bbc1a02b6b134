#!/usr/bin/perl

# A world in one process: two nginx of two workers each, made of the real rooms of
# store/, over the real db.c and the real scripts of a Redis, with all troubles
# that there are, decided by a seed. Here are those seeds that ever failed, and
# some hundred others, the same each time: what fails here is a finding. Fresh
# ones by util/sim, which also tells a seed's story.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use Test::More;

my $root = dirname(dirname(abs_path(__FILE__)));

plan skip_all => 'no NGINX_SOURCE_DIR: util/test sets it' unless $ENV{NGINX_SOURCE_DIR};
plan skip_all => 'no Lua 5.1 to link' unless -e ($ENV{LUA_INCLUDE} // '/usr/include/lua5.1') . '/lua.h';

open my $objs, '<', "$ENV{NGINX_SOURCE_DIR}/objs/ngx_auto_config.h" or die $!;
plan skip_all => 'no SQLite to link' unless grep /^#define NGX_IDEMPOTENCY_SQLITE /, <$objs>;

# the sanitizers know nothing of libraries that are one program seven times
plan skip_all => 'built with sanitizers' if ($ENV{EXTRA_CFLAGS} // '') =~ /-fsanitize/;

my $said = qx(bash '$root/t/sim/run' --list '$root/t/sim/seeds' --from 1 --count 300 --local 0 --seconds 300 2>&1);

ok($? == 0 && $said =~ /^# \d+ seeds in.* 0 failed/m, 'never twice, and an end for whoever waits')
    ? note($said =~ /^(# \d+ seeds in.*)/m) : diag($said);

done_testing();
