#!/usr/bin/perl

# Two nginx over one Redis whose master dies: sentinels make another, or a cluster
# does. With replicas= nothing is executed twice, and what was refused meanwhile is
# executed later.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Idempotency;
use Redis;
use Time::HiRes qw(sleep);

my @programs = Redis->programs or plan(skip_all => 'no redis-server');

subtest 'sentinels' => sub { sentinels(program => $programs[0]) };
subtest 'a cluster' => sub { cluster(program => $programs[-1]) };

done_testing();


sub sentinels {
    my %p = (@_, args => ['--appendonly', 'yes', '--repl-diskless-sync-delay', 0]);

    my $master = Redis->new(%p);
    my @replicas = map Redis->new(%p, args => [@{$p{args}}, '--replicaof', '127.0.0.1', $master->port]), 1, 2;
    my @s = Redis->sentinels($master, 3, program => $p{program}, replicas => 2);

    fails_over('mode sentinel; master m; ' . join('', map 'server 127.0.0.1:' . $_->port . ';', @s),
               $master, sub { });
}


# The slots of the dead have no second replica: they wait for it.

sub cluster {
    my @n = Redis->cluster(6, @_, args => ['--appendonly', 'yes']);

    fails_over('mode cluster; ' . join('', map 'server 127.0.0.1:' . $_->port . ';', @n[3 .. 5]),
               $n[0], sub { $n[0]->start });
}


sub fails_over {
    my ($block, $master, $mend) = @_;

    my @nginx = map nginx(workers => 2, zone => 0, allow => qr/redis "r"|idempotency_redis/, http => <<"EOC",
        idempotency_redis r { $block timeout 1s; connect_timeout 1s; replicas 1; }
        idempotency_zone zone=z:4m redis=r;
EOC
        server => <<'EOC'), 1, 2;
        location / {
            idempotency zone=z;
            idempotency_lease 30s;
            add_header X-Status $idempotency_status always;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
EOC

    my @ids = map 'f' . $master->port . "-$_", 1 .. 80;

    # each to both at once
    my $ask = sub { map { my $id = $_; map $_->start('POST', "/?id=$id", key => $id), @nginx } @_ };
    my $told = sub { my %n; $n{$_->response->{status}}++ for @_; return join ', ', map "$_: $n{$_}", sort keys %n };

    until_true { $nginx[0]->post('/?id=warm' . $master->port, key => 'warm')->{status} == 200 };
    until_true { $nginx[1]->post('/?id=warm' . $master->port, key => 'warm')->{status} == 200 };

    is($told->($ask->(@ids[0 .. 19])), '200: 40', 'all is well');
    is(scalar(grep executions($_) != 1, @ids[0 .. 19]), 0, '... and each is executed once');

    # some are under way when it dies
    my @under_way = $ask->(@ids[20 .. 39]);
    $master->kill;

    for my $burst (0 .. 3) {
        push @under_way, $ask->(@ids[40 + 10 * $burst .. 49 + 10 * $burst]);
        sleep 0.5;
    }

    my %status;
    $status{$_->response->{status}}++ for @under_way;
    is(join(' ', grep !/^(?:200|409|503)$/, keys %status), '', 'the master died: answered or refused')
        or diag(join ', ', map "$_: $status{$_}", sort keys %status);
    is(scalar(grep executions($_) > 1, @ids), 0, '... and nothing executed twice');

    $mend->();

    my $again = 0;

    for my $i (0 .. $#ids) {
        $again++ if until_true { $nginx[$i % 2]->post("/?id=$ids[$i]", key => $ids[$i])->{status} == 200 };
    }

    is($again, 80, 'there is another: all are answered');
    is(scalar(grep executions($_) != 1, @ids), 0, '... each executed once');

    $_->stop for @nginx;
}
