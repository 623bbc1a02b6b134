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

sub sim {
    my ($name, @options) = @_;

    my $said = qx(bash '$root/t/sim/run' @options 2>&1);
    my $ok = ok($? == 0 && $said =~ /^# (\d+) seeds?.* 0 failed/m, $name);

    $ok ? note($said =~ /^(# \d+ seeds? .*)/m) : diag($said);
}

sim('seeds that failed once', '--list', "$root/t/sim/seeds");
sim('some hundred others', '--from 1 --count 600 --seconds 60');

done_testing();
