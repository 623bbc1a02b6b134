#!/usr/bin/perl

# docs/directives.md, idempotency_api: records?tier=backing, of a Redis or a cluster: all
# that it has of a zone, whoever recorded it, and nothing else.

use lib 't/lib';
use FakeRedis;
use Idempotency;
use Redis;

use JSON::PP qw(decode_json);

plan(skip_all => 'no redis-server') if !Redis->programs;

my $redis = Redis->new(args => [qw(--appendonly yes)]);

# a prefix that is no pattern
my $prefix = 'i*[d]?:';

my @nginx = map {
    nginx(allow => qr/is unavailable|no connection/, zone => 'idempotency_redis r { server unix:' . $redis->path . "; prefix \"$prefix\"; }\n"
                  . "idempotency_zone zone=z:8m redis=r;\nidempotency_zone zone=zz:8m redis=r;\n",
          server => <<'EOC')
    idempotency zone=z;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /other { idempotency zone=zz; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /idem/ { idempotency_api; }
EOC
} 1, 2;

my ($here, $there) = @nginx;
my $records = '/idem/zones/z/records';


# --- nothing, and what is none of it ------------------------------------------

is_deeply([walk($here, 'tier=backing')], [], 'nothing is there');

$redis->command('SET', "$_$prefix" . 'z:' . 'A' x 43, 'x' x 200) for 'b', '';
$redis->command('SET', 'ixd:z:' . 'B' x 43, 'I2D' . 'x' x 200);
$redis->command('SET', $prefix . 'z:' . 'C' x 42, 'I2D' . 'x' x 200);
$redis->command('LPUSH', $prefix . 'z:' . 'D' x 43, 'x');
$redis->command('SET', "noise:$_", $_) for 1 .. 200;
$there->post('/other', key => $_) for 1 .. 20;


# --- all, each once -----------------------------------------------------------

recorded("l$_") for 1 .. 250;
until_true { zone($there)->{store}{undelivered} == 0 };

my %before = map { $_->{token} => $_ } walk($there, 'limit=1000');

is(scalar keys %before, 250, 'in memory there');
is(scalar(walk($here, 'limit=1000')), 0, 'and not here');

for my $limit (1, 7, 64, 1000) {
    my @rows = walk($here, "tier=backing&limit=$limit");
    my %seen;

    $seen{$_->{token}}++ for @rows;
    is(scalar keys %seen, 250, "limit=$limit: all are told");
    is(scalar(grep { $_ != 1 } values %seen), 0, '... once');
    is(scalar(grep { !$before{$_} } keys %seen), 0, '... and no others');
}

my ($one) = walk($here, 'tier=backing&limit=1000');
my $was = $before{$one->{token}};

is($one->{$_}, $was->{$_}, "$_ is as it was") for qw(outcome fingerprint status fence);
cmp_ok($one->{size}, '>', $was->{size}, 'size is what is stored: with how it is sealed');
cmp_ok(abs($one->{recorded} - $was->{recorded}), '<', 2, 'so is when it was recorded');
cmp_ok(abs($one->{expires} - $was->{expires}), '<', 2, '... and ends');


# --- while others come --------------------------------------------------------

{
    my $n = 0;
    my %seen = map { $_->{token} => 1 } walk($here, 'tier=backing&limit=20', sub {
        $there->post("/m$n", key => 'm' . $n++) for 1 .. 40;
    });

    cmp_ok($n, '>=', 400, "$n came meanwhile");
    is(scalar(grep { !$seen{$_} } keys %before), 0, 'what was there all the time is told');
}

{
    my $first = $there->start('POST', '/?id=pending&gate=1', key => 'pending');

    held('pending');

    # it is told at once, or a moment later
    my $row;
    ok(until_true { ($row) = grep { $_->{outcome} eq 'pending' } walk($here, 'tier=backing&limit=1000') },
       'what is executed there is pending');
    is($row->{expires}, undef, '... without an end');
    like($row->{owner}, qr/^[0-9a-f]{16}$/, '... and with an owner');
    go('pending');
    $first->response;
    until_true { zone($there)->{store}{undelivered} == 0 };
}


# --- it is gone ---------------------------------------------------------------

$redis->kill;
is($here->get("$records?tier=backing")->{status}, 503, 'it is gone');
is($here->get($records)->{status}, 200, '... memory is not');

$_->stop for @nginx;


# --- sentinels ----------------------------------------------------------------

# There is no map of slots to be asked for anew: who listens to a sentinel goes on.

{
    my $master = Redis->new;
    my $sentinel = FakeRedis->new(
        SENTINEL => "*2\r\n" . FakeRedis::bulk('127.0.0.1') . FakeRedis::bulk($master->port),
        SUBSCRIBE => "*3\r\n+subscribe\r\n+x\r\n:1\r\n");

    my $n = nginx(workers => 1, allow => qr/idempotency_redis/,
                  zone => 'idempotency_redis r { mode sentinel; master m; server 127.0.0.1:' . $sentinel->port . "; }\n"
                          . "idempotency_zone zone=z:8m redis=r;\n",
                  server => <<'EOC');
    idempotency zone=z;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /idem/ { idempotency_api; }
EOC

    until_true { $n->get("$records?tier=backing")->{status} == 200 };

    my $pings = sub { return scalar grep { $_->[0] eq 'PING' } $sentinel->commands };
    my ($connections, $before) = ($sentinel->connections, $pings->());

    # it is asked every few seconds whether it is there: by then it would have
    # been left for another one

    walk($n, 'tier=backing');
    until_true { $pings->() > $before };

    is($sentinel->connections, $connections, 'a list leaves the connection to the sentinel as it is');

    $_->stop for $n, $sentinel;
}


# --- a cluster ----------------------------------------------------------------

my @nodes = Redis->cluster(6);

@nginx = map {
    nginx(allow => qr/is unavailable|no connection|did not list/, workers => $_,
          zone => 'idempotency_redis r { mode cluster; ' . join(' ', map 'server 127.0.0.1:' . $_->port . ';', @nodes[0, 4])
                  . " prefix \"$prefix\"; }\nidempotency_zone zone=z:8m redis=r;\n",
          server => <<'EOC')
    idempotency zone=z;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /idem/ { idempotency_api; }
EOC
} 2, 1;

($here, $there) = @nginx;
until_true { $_->get("$records?tier=backing")->{status} == 200 } for @nginx;
is_deeply([walk($here, 'tier=backing')], [], 'nothing is in a cluster');

recorded("c$_") for 1 .. 250;
until_true { zone($there)->{store}{undelivered} == 0 };

%before = map { $_->{token} => $_ } walk($there, 'limit=1000');
is(scalar keys %before, 250, 'in memory there');

for my $limit (1, 7, 64, 1000) {
    my ($seen, $twice) = seen("tier=backing&limit=$limit");

    is_deeply([sort keys %$seen], [sort keys %before], "limit=$limit: all are told, and no others");
    is($twice, 0, '... once');
}

# the cluster is down, as those see it that are well: no list is better than half of one
{
    $nodes[1]->pause;
    until_true { 2 == grep { $_->command('CLUSTER', 'INFO') =~ /^cluster_state:fail/m } @nodes[0, 2] };
    $nodes[1]->resume;

    my ($seen) = seen('tier=backing&limit=1000');

    is(scalar(grep { !$seen->{$_} } keys %before), 0, 'a master was away: all are told, or nothing');
}

# a slot moves from the one to the other while it is asked for
{
    my ($key) = grep { /:[\w-]{43}$/ } @{$nodes[0]->command('KEYS', '*')};
    my $slot = $nodes[0]->command('CLUSTER', 'KEYSLOT', $key);
    my %moved = map { $_ => 1 } @{$nodes[0]->command('CLUSTER', 'GETKEYSINSLOT', $slot, 1000)};

    my ($seen) = seen('tier=backing&limit=20', sub {
        return if !%moved || $nodes[0]{moved}++;

        $nodes[1]->takes('CLUSTER', 'SETSLOT', $slot, 'IMPORTING', $nodes[0]{id});
        $nodes[0]->takes('CLUSTER', 'SETSLOT', $slot, 'MIGRATING', $nodes[1]{id});
        $nodes[0]->takes('MIGRATE', '127.0.0.1', $nodes[1]->port, $_, 0, 5000) for keys %moved;
        $_->takes('CLUSTER', 'SETSLOT', $slot, 'NODE', $nodes[1]{id}) for @nodes[1, 0, 2];
    });

    cmp_ok(scalar(grep { !$seen->{$_} } keys %before), '<=', scalar keys %moved, 'a slot moves: no more than that is missed');

    ($seen) = seen('tier=backing&limit=20');
    is(scalar(grep { !$seen->{$_} } keys %before), 0, '... and nothing afterwards');
}

# another master while it is asked for: from the beginning
{
    my $failed;

    # who lists asks for the map first; what changes behind that it hears from the
    # old master alone
    my $maps = sub {
        my $n = 0;
        $n += ($_->info('cmdstat_cluster|slots') // '') =~ /calls=(\d+)/ ? $1 : 0 for @nodes;
        return $n;
    };

    my $before = $maps->();

    my ($seen) = seen('tier=backing&limit=20', sub {
        return if $failed++;

        until_true { $maps->() > $before };
        until_true { $nodes[5]->command('CLUSTER', 'FAILOVER');
                     ($nodes[5]->info('role') // '') eq 'master' };
    });

    ok($failed, 'another master meanwhile') or diag(map $_->log, @nodes[2, 5]);
    is(scalar(grep { !$seen->{$_} } keys %before), 0, '... and all is told');
}

$_->stop for @nginx;
done_testing();


sub zone { return decode_json($_[0]->get('/idem/zones/z')->{body}) }

# On a busy machine an answer of the Redis may be too late.

sub in_time {
    my ($ask) = @_;

    return until_true { my $r = $ask->(); $r->{status} != 503 && $r } || die '503';
}

sub recorded { my ($id) = @_; in_time(sub { $there->post("/$id", key => $id, body => $id) }) }

# Those that were told, and how many of them twice.

sub seen {
    my ($args, $between) = @_;

    my (%seen, $twice);

    $twice += $seen{$_->{token}}++ ? 1 : 0 for walk($here, $args, $between);

    return (\%seen, $twice // 0);
}

sub walk {
    my ($n, $args, $between) = @_;

    my $next = "$records?$args";
    my @rows;

    while ($next) {
        my $r = in_time(sub { $n->get($next) });

        is($r->{status}, 200, 'a page') if $r->{status} != 200;
        push @rows, map decode_json($_), split /\n/, $r->{body};
        ($next) = ($r->header('Link') // '') =~ /^<([^>]*)>; rel="next"$/;
        $between->() if $between && $next;
    }

    return @rows;
}
