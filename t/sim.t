#!/usr/bin/perl

# A world in one process: two nginx of two workers each, made of the real rooms of
# store/, over the real db.c and the real scripts of a Redis, with all troubles
# that there are, decided by a seed. Here are those seeds that ever failed, some
# hundred others, the same each time, and a thousand that each state of src/ has for itself:
# what fails here is a finding, and util/sim --seed repeats it and tells its story.
# Over a Redis the first ones run again in each real server that is here.
#
# Environment: TEST_SIM_SEEDS: how many a state of src/ has for itself (default: 1000)

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp qw(tempdir);
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

my $build = $ENV{BUILD_DIR} // "$root/build";
my $fixed = "--list '$root/t/sim/seeds' --from 1 --count 300";
my $seeds = $ENV{TEST_SIM_SEEDS} // 1000;

# they need no disk
$ENV{TMPDIR} = '/dev/shm' if -w '/dev/shm';

my $built = qx(bash '$root/t/sim/run' --build 2>&1);
die $built if $?;

holds('never twice, and an end for whoever waits', run($fixed));
holds("... over a real $_", scalar qx(bash '$root/t/sim/server' $_ $fixed 2>&1))
    for grep seven($_), Resp::servers();

holds('... in worlds of this src/', run('--from ' . first_seed() . " --count $seeds"));

# whoever repeats a seed has another machine, directory and memory
{
    my $here = run('--from 1 --count 60');
    local $ENV{TMPDIR} = tempdir(CLEANUP => 1, DIR => '/tmp');
    local $ENV{MALLOC_PERTURB_} = 165;

    is(trace(run('--from 1 --count 60 --jobs 2')), trace($here), 'a seed is the same world each time');
}

done_testing();

# Each state of src/ that is committed begins elsewhere, and always there. Without
# git, as in a release, it is always the same.
sub first_seed {
    my ($tree) = qx(git -C '$root' -c safe.directory='*' rev-parse HEAD:src 2>&1) =~ /^([0-9a-f]{8})/;

    return 1_000_000 + hex($tree // 0);
}

# The scripts' flags are of Redis 7.
sub seven {
    my ($program) = @_;

    return qx($program --version) =~ /v=(\d+)/ && $1 >= 7;
}

sub run {
    return scalar qx('$build/sim/world' --worker '$build/sim/worker.so' $_[0] 2>&1);
}

sub trace {
    return $_[0] =~ /^# trace ([0-9a-f]+)$/m ? $1 : $_[0];
}

sub holds {
    my ($what, $said) = @_;

    ok($? == 0 && $said =~ /^# [1-9]\d* seeds in.* 0 failed/m, $what)
        ? note($said =~ /^(# \d+ seeds in.*)/m) : diag($said);
}
