#!/usr/bin/perl

# docs/operation.md, "Stop and reload": what a store out of reach was not told yet when
# nginx is stopped. A quit says at once how many outcomes that are, and the last worker
# goes on trying; a stop tries once. What was delivered is not executed again.

use lib 't/lib';
use Between;
use Disk;
use Idempotency;
use Redis;
use Restart;

use Time::HiRes qw(time sleep);

my $server = <<'EOC';
    idempotency zone=z;
    add_header X-Status $idempotency_status always;
    proxy_read_timeout 10m;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /local { idempotency_unavailable local; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /free { idempotency off; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /api/ { idempotency_api; }
EOC

my $said = qr/outcomes| is unavailable: /;
my ($n, $names) = (undef, 0);

sub uri { return ($_[0] =~ /^local/ ? '/local' : '/x') . "?id=$_[0]" }

sub order {
    my ($id, $how) = @_;

    return told($n->post(uri($id), key => $id, body => 'b'));
}

sub told_all { return $n->get('/api/zones/z')->{body} =~ /"undelivered":0\b/ }

sub up { return $n->get('/api/metrics')->{body} =~ /^nginx_idempotency_store_up\S* 1/m ? 1 : 0 }


# Each store: how it begins, goes, hangs and comes.

my %stores;

if (Redis->programs) {
    my $redis = Redis->new;
    my $between = Between->new($redis->port);
    my $block = 'idempotency_redis r { server 127.0.0.1:' . $between->port . '; timeout 500ms; }';

    $stores{'a Redis'} = {
        block => $block,
        start => sub {
            my (%o) = @_;
            $redis->command('FLUSHALL');
            $n = outliving(workers => 2, zone => 0, server => $server, allow => $said, %o, http => <<"EOC" . ($o{http} // ''));
    $block
    idempotency_zone zone=z:4m redis=r;
EOC
        },
        goes => sub { $between->now('away') },
        hangs => sub { $between->now('late') },
        comes => sub { $between->now('flow') },
        differs => sub { $redis->command('RENAME', 'idem:z:stamp', 'away') },
        same => sub { $redis->command('RENAME', 'away', 'idem:z:stamp') },
    };
}

if (my $why = no_state()) {
    diag("no file: $why");

} else {
    my $disk = Disk->new('/z.db');

    $stores{'a file'} = {
        start => sub {
            my (%o) = @_;
            $n = outliving(workers => 2, env => $disk->env, main => $disk->main . ($o{main} // ''),
                           allow => qr/$said|state file/, zone => with_state('batched'), server => $server,
                           map { $_ => $o{$_} } grep $_ ne 'main', keys %o);
        },
        goes => sub { $disk->set(write => 'fail') },
        fails => sub { $disk->set(sync => 'fail') },
        hangs => sub { $disk->set(all => 'hang') },
        comes => sub { $disk->well },
    };
}

plan(skip_all => 'no store') if !%stores;


# Executed while it is out of reach: of some the claim is there, of some nothing.

sub executed {
    my ($store, $how) = @_;

    my @c = map { my $id = 'n' . ++$names;
                  [ $id, $n->start('POST', uri($id) . '&gate=1', key => $id, body => 'b') ] } 1 .. 5;
    held($_->[0]) for @c;

    $store->{$how}->();

    # until then a claim may be on its way
    until_true { order('away' . ++$names) eq '503 UNAVAILABLE' && !up() } or die 'it is there';

    # what nobody but this nginx knows
    my @local = map 'local' . ++$names, 1 .. 5;

    for my $id (@local) {
        until_true { order($id) eq '200 NEW' } or die "local: " . order($id);
    }

    for (@c) {
        go($_->[0]);
        told($_->[1]->response) eq '200 NEW' or die 'not executed';
        $_->[1]->close;
    }

    return (@local, map $_->[0], @c);
}


# A new nginx remembers nothing until its store answers, so nothing is guarded by its
# memory alone then.

sub comes_up {
    $n->up(server => $server =~ s/ idempotency_unavailable local;//r);
}

sub asked {
    my ($id) = @_;

    my $uri = uri($id) . ($id =~ /^n/ ? '&gate=1' : '');
    my $how = until_true { my $h = told($n->post($uri, key => $id, body => 'b')); $h eq '503 UNAVAILABLE' ? '' : $h };

    return $how || 'nothing';
}


sub all_known {
    my ($name, @ids) = @_;

    my @how = map asked($_), @ids;
    is(join(' ', @how), join(' ', ('200 REPLAYED') x @ids), "$name: all are replayed");
    is(scalar(grep { executions($_) != 1 } @ids), 0, '... and executed once');
}


sub alerts { return [ $n->log =~ /\[alert\] (?:\S+ ){1,3}?(idempotency: .*outcomes.*)/g ] }

sub begins {
    my ($store, %o) = @_;

    $store->{comes}->();
    $n->stop if $n;
    $store->{start}->(%o);
    until_true { order('well' . ++$names) eq '200 NEW' && told_all() } or die 'it does not come';
}


for my $name (sort keys %stores) {
    my $store = $stores{$name};

    for my $how (qw(goes hangs)) {
        begins($store);

        my @ids = executed($store, $how);

        $n->strike('QUIT');
        ok((until_true { @{alerts()} == 1 }), "$name $how, a quit: it is said");
        like(alerts()->[0], qr/zone "z": 10 outcomes are not in /, '... how many it lacks');
        is(scalar($n->alive) > 1, 1, '... a worker stays');

        $store->{comes}->();
        ok((until_true { $n->gone }), '... until it is back');
        like($n->log, qr/\[notice\] .*zone "z": 10 outcomes were delivered/, '... they were delivered');
        is(scalar @{alerts()}, 1, '... all of them');

        comes_up();
        all_known("$name $how, a quit", @ids);
    }

    # it stays no longer than it may; nor where it is the only one, and looks after all

    my @ids;

    for my $workers (1, 2) {
        begins($store, main => "worker_shutdown_timeout 1s;\n", workers => $workers);
        @ids = executed($store, 'goes');
        my $from = time;

        $n->down('QUIT');
        cmp_ok(time - $from, '>', 0.9, "$name, worker_shutdown_timeout, workers $workers: it tries for so long");
        like(alerts()->[-1], qr/zone "z": 10 outcomes were not delivered/, '... and says what is lost');
        $store->{comes}->();
        comes_up();
        is(join(' ', map asked($_), @ids[0 .. 4]), join(' ', ('200 NEW') x 5), '... which is executed again');
    }

    # a stop tries once, for half a second, which a busy machine may not give it: then
    # it says so; but the last worker never of what another one is just writing

    my $lost;

    for (1 .. 6) {
        $lost = 0;

        for (1 .. 5) {
            begins($store);
            @ids = executed($store, 'goes');
            $store->{comes}->();
            $n->down('TERM');
            $lost += @{alerts()};
        }

        last if !$lost;
    }

    is($lost, 0, "$name, a stop when it has come back: nothing is lost");
    comes_up();
    all_known("$name, a stop", @ids);

    begins($store);
    @ids = executed($store, 'goes');
    $n->down('TERM');
    is(scalar(@{alerts()}), 1, "$name, a stop while it is away");
    like(alerts()->[0], qr/zone "z": 10 outcomes were not delivered/, '... says what is lost');
    $store->{comes}->();
    comes_up();

    # new workers go on with it

    begins($store);
    @ids = executed($store, 'goes');
    my @old = $n->workers;
    is($n->reload, 1, "$name, a reload while it is away");
    ok((until_true { !grep { kill 0, $_ } @old }), '... keeps no worker');
    is(scalar(@{alerts()}), 0, '... and is no loss');
    $store->{comes}->();
    ok((until_true { up() && told_all() }), '... new ones deliver it');
    $n->down('KILL');
    comes_up();
    all_known("$name, a reload", @ids);

    # a single process reads the configuration anew, and goes on by the old one

    begins($store, main => "master_process off;\n", workers => 0);
    @ids = executed($store, 'goes');
    $n->strike('HUP');
    ok((until_true { 2 == (() = $n->log =~ /idempotency: version /g) }), "$name, master_process off: a reload");
    $n->down('TERM');
    is(scalar(@{alerts()}), 1, '... and a stop');
    like(alerts()->[0], qr/zone "z": 10 outcomes were not delivered/, '... says what is lost');
    $store->{comes}->();
    $n->up;
}

# A Redis that seems to be another one may be the right one again, as another nginx
# may have agreed, or its master was replaced: a quit waits for that, too.

if (my $store = $stores{'a Redis'}) {
    my @c;

    # two seconds later it is refused

    for (1 .. 20) {
        begins($store, allow => qr/$said|is refused/);
        @c = map { my $id = 'n' . ++$names;
                   [ $id, $n->start('POST', uri($id) . '&gate=1', key => $id, body => 'b') ] } 1 .. 5;
        held($_->[0]) for @c;

        $store->{differs}->();
        go($_->[0]) for @c;
        told($_->[1]->response) eq '200 NEW' or die 'not executed' for @c;
        $_->[1]->close for @c;

        $n->strike('QUIT');
        last if $n->log !~ /is refused/;
        $store->{same}->();
    }

    ok((until_true { @{alerts()} == 1 }), 'a Redis that seems to be another one, a quit: it is said');
    sleep 1;
    is(scalar($n->alive) > 1, 1, '... a worker stays');
    $store->{same}->();
    ok((until_true { $n->gone }), '... until it is the one that it was');
    like($n->log, qr/\[notice\] .*zone "z": 5 outcomes were delivered/, '... they were delivered');

    comes_up();
    all_known('... then', map $_->[0], @c);
}

# What failed to sync comes back by a start alone: no quit waits for it.

if (my $store = $stores{'a file'}) {
    begins($store, workers => 1);
    executed($store, 'fails');

    # a worker that looks after the file for some time yet

    my $last = $n->start('POST', '/free?id=last&gate=1', body => 'b');
    held('last');
    $n->strike('QUIT');
    until_true { @{alerts()} };
    sleep 0.3;
    go('last');

    is($last->response->{status}, 200, 'a file whose syncs fail: a quit lets requests end');
    ok((until_true { $n->gone }), '... and does not wait for it');
    like(alerts()->[0], qr/: a worker process stays for up to 0 ms/, '... nor says so');
    like(alerts()->[-1], qr/zone "z": \d+ outcomes were not delivered/, '... and says what is lost');
    $store->{comes}->();
    $n->up;
}

# The half second of a stop is that of all zones: one whose file fails leaves some of it
# to another one, whose Redis has come back. A busy machine may need several tries.

if (keys %stores == 2) {
    my ($file, $redis) = @stores{'a file', 'a Redis'};
    my $b = 'location /b { idempotency zone=b; idempotency_unavailable local; proxy_pass http://$TEST_NGINX_BACKEND; }';

    for (1 .. 10) {
        $redis->{comes}->();
        begins($file, server => "$server $b", http => "$redis->{block} idempotency_zone zone=b:4m redis=r;");

        my $ask = sub { my ($at) = @_; my $id = 'both' . ++$names; told($n->post("$at?id=$id", key => $id, body => 'b')) };
        my $all = sub { my ($at) = @_; until_true { $ask->($at) eq '200 NEW' } or die "$at: not executed" };

        $all->('/b');
        $_->{goes}->() for $file, $redis;
        $all->($_) for '/local', ('/b') x 5;
        $redis->{comes}->();
        $n->down('TERM');
        last if $n->log !~ /zone "b": \d+ outcomes were not/;
    }

    unlike($n->log, qr/zone "b": \d+ outcomes were not/, 'a stop where another zone fails: its outcomes are delivered');
    like($n->log, qr/zone "z": \d+ outcomes were not delivered/, '... and those of that one are lost');
    $file->{comes}->();
    $n->up;
}

$n->stop;
done_testing();
