#!/usr/bin/perl

# idempotency_zone, redis: two nginx over one Redis are as one, whatever becomes of
# either, and of the Redis.

use lib 't/lib';
use Idempotency;
use Redis;
use Restart;

use List::Util qw(uniq);
use MIME::Base64 qw(encode_base64url);
use Time::HiRes qw(time);

plan(skip_all => 'no redis-server') if !Redis->programs;

my $redis = Redis->new(args => [qw(--appendonly yes --appendfsync always)]);

my $server = <<'EOC';
    idempotency zone=z;
    idempotency_wait_timeout 10m;
    idempotency_lease 1h;
    idempotency_methods POST;
    add_header X-Status $idempotency_status always;
    add_header X-Fence $idempotency_fence always;
    add_header X-Token $idempotency_token always;
    proxy_read_timeout 10m;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /brief { idempotency_lease 1s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /long { idempotency_lease 3s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /retry {
        idempotency_lease 1s;
        idempotency_in_doubt retry;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /local { idempotency_unavailable local; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /api { idempotency_api write=on; }
EOC

# What the log may say: the test sees to it that it says it where it should.

my $trouble = qr/redis "r" of zone "z" (?:is unavailable|has lost)|exited on signal 9|is none of this version/;

sub block {
    my ($of, %o) = @_;

    return 'idempotency_redis r { server unix:' . $of->path . "; timeout 5s; "
           . ($o{settings} // '') . " }\n";
}

sub over {
    my ($of, %o) = @_;

    return outliving(workers => $o{workers} // 2, allow => $trouble,
                     zone => 'idempotency_zone zone=z:' . ($o{size} // '8m') . " redis=r;\n"
                             . block($of, %o) . ($o{http} // ''),
                     server => $o{server} // $server);
}

sub at {
    my ($n, $id, %o) = @_;

    return $n->post(($o{at} // '') . "/x?id=$id" . ($o{more} // ''), key => $id,
                    body => $o{body} // 'b', timeout => $o{timeout});
}

sub asked { my ($n, $id, %o) = @_;
            return $n->start('POST', ($o{at} // '') . "/x?id=$id" . ($o{more} // ''), key => $id, body => 'b') }

sub keys_of { my @keys = sort @{$redis->command('KEYS', '*')}; return @keys }

# The client does not wait for the Redis to hear of it.

sub heard {
    return until_true {
        !grep { /:[\w-]{43}$/ && ($redis->command('GETRANGE', $_, 2, 2) // '') eq 'P' } keys_of();
    };
}

# Each worker finds out by itself that it is back; one of them may answer all that is
# asked here, so each says so itself. What it has not said yet `local` guards alone.

my $tries = 0;

sub back {
    for my $n (@_) {
        until_true {
            my $new = told(at($n, 'back' . ++$tries)) eq '200 NEW';
            my %said = $n->log =~ /(\d+)#\d+: idempotency_redis "r": .*?(no connection to|is back)/g;

            return $new && !grep { ($said{$_} // 'is back') ne 'is back' } $n->workers;
        };
    }
}

sub calls {
    my $said = $redis->command(qw(INFO commandstats));

    return $said =~ /cmdstat_evalsha:calls=(\d+)/ ? $1 : 0;
}

my ($a, $b) = map over($redis, workers => $_), 2, 1;


# --- one promise ---------------------------------------------------------------

{
    my $first = at($a, 'one', more => '&status=201&reason=Made%20It&h=X-A:%201&h=X-A:%202&size=70000');
    heard();
    my $there = at($b, 'one', more => '&status=201&reason=Made%20It&h=X-A:%201&h=X-A:%202&size=70000');

    is(told($first), '201 NEW', 'executed at one nginx');
    is(told($there), '201 REPLAYED', 'replayed by the other');
    same_replay($first, $there, '... byte by byte');
    is($there->header('X-Fence'), $first->header('X-Fence'), '... under the fence of its claim');
    is(told(at($b, 'one', body => 'c')), '409 CONFLICT', 'another body is another request');
    is(executions('one'), 1, 'executed once');

    my @keys = grep { !/:stamp$/ } keys_of();
    is(scalar @keys, 1, 'one key');
    is($keys[0], 'idem:z:' . encode_base64url(pack 'H*', $first->header('X-Token')),
       '... named by the token, as docs/operation.md finds it by hand');
    is($redis->command('GETRANGE', $keys[0], 2, 2), 'D', '... which tells its state');
    cmp_ok($redis->command('PTTL', $keys[0]), '>', 86_000_000, '... for the window');
}

# a round trip before it is passed on, and one behind; none for what is known

{
    at($_, 'warm') for $a, $b;
    heard();

    my @steps = map {
        my ($n, $what) = @$_;
        my $before = calls();
        my $then = told(at($n, 'trips'));

        until_true { calls() - $before >= $what };
        "$then " . (calls() - $before);
    } [$a, 2], [$a, 0], [$b, 1], [$b, 0];

    is(join(', ', @steps), '200 NEW 2, 200 REPLAYED 0, 200 REPLAYED 1, 200 REPLAYED 0',
       'round trips');
}

# what is pending elsewhere is waited for; who does not wait is told

{
    my $owner = asked($a, 'wait', more => '&gate=1');
    held('wait');

    my @w = map asked($_, 'wait', more => '&gate=1'), $a, $b, $b, $b;

    is(told(at($b, 'wait', at => '/reject', more => '&gate=1')), '409 CONFLICT', 'another action');

    until_true { $redis->command(qw(PUBSUB CHANNELS idem:z:*))->[0] };
    go('wait');

    is(told($owner->response), '200 NEW', 'an owner');
    is(join(' ', map { told($_->response) =~ s{REPLAYED}{WAITED}r } @w), join(' ', ('200 WAITED') x 4),
       '... all who wait for it, here and there');
    is(executions('wait'), 1, '... executed once');

    $owner = asked($a, 'busy', at => '/reject', more => '&gate=1');
    held('busy');
    is(told(at($b, 'busy', at => '/reject', more => '&gate=1')), '409 IN_PROGRESS',
       'who does not wait is told');
    go('busy');
    $owner->response;
    heard();
    is(told(at($b, 'busy', at => '/reject', more => '&gate=1')), '200 REPLAYED', '... then it is done');
}

# two at once at each, for many tokens

{
    my @ids = map "race$_", 1 .. 150;
    my @c = map { my $id = $_; map asked($_, $id), $a, $b } @ids;
    my %said;

    $said{told($_->response)}++ for @c;

    is($said{'200 NEW'}, scalar @ids, 'each token is new once');
    is(($said{'200 WAITED'} // 0) + ($said{'200 REPLAYED'} // 0), scalar @ids,
       '... and the other one gets its response') or diag(explain(\%said));
    is(scalar(grep { executions($_) != 1 } @ids), 0, '... executed once');
}

# what was not carried out is fresh again, everywhere

{
    my $refuses = '&status=503&h=Retry-After:%201&gate=1';
    my $owner = asked($a, 'released', more => $refuses);
    held('released');
    my $w = asked($b, 'released', more => $refuses);
    until_true { grep { /./ } @{$redis->command(qw(PUBSUB CHANNELS idem:z:*))} };
    go('released');

    is(told($owner->response), '503 NEW', 'what binds nothing');
    held('released');
    go('released');
    is(told($w->response), '503 NEW', '... who waits elsewhere executes then');
    is(executions('released'), 2, '... after it');
}

# larger than what is kept

{
    is(told(at($a, 'large', more => '&size=262145')), '200 NEW', 'more than 256k');
    heard();
    is(told(at($b, 'large', more => '&size=262145')), '409 NOT_KEPT', '... is not kept');
    is(told(at($a, 'fits', more => '&size=262144')), '200 NEW', 'as much');
    heard();
    my $r = at($b, 'fits', more => '&size=262144');
    is(told($r) . ' ' . length $r->{body}, '200 REPLAYED 262144', '... is');
}


# --- who dies ------------------------------------------------------------------

# a worker: its zone knows

{
    my $owner = asked($a, 'killed', more => '&gate=1');
    held('killed');
    my $w = asked($b, 'killed', more => '&gate=1');

    my ($pid) = $a->log =~ /.*\[info\] (\d+)#.*idempotency claim/s;
    kill KILL => $pid;

    is(told($w->response), '409 IN_DOUBT', 'a worker is killed: in doubt at once, with a lease of an hour');
    is(told(at($_, 'killed', more => '&gate=1')), '409 IN_DOUBT', '... everywhere') for $a, $b;
    go('killed');
    is(executions('killed'), 1, '... executed once');
}

# all of an nginx: its lease

{
    my $q = asked($a, 'dead', at => '/brief', more => '&gate=1');
    held('dead');
    my $from = time;
    my $r = asked($a, 'dead2', at => '/retry', more => '&gate=1');
    held('dead2');

    $a->down('KILL');

    my $w = asked($b, 'dead', at => '/brief', more => '&gate=1');
    my $w2 = asked($b, 'dead2', at => '/retry', more => '&gate=1');

    is(told($w->response), '409 IN_DOUBT', 'an nginx is killed: in doubt');
    cmp_ok(time - $from, '>=', 0.6, '... when its lease is over');

    held('dead2', 2);
    go($_) for qw(dead dead2);
    is(told($w2->response), '200 NEW', '... or taken over, with retry');
    is(executions('dead'), 1, '... executed once');

    $a->up;
    is(told(at($a, 'one', more => '&status=201&reason=Made%20It&h=X-A:%201&h=X-A:%202&size=70000')),
       '201 REPLAYED', 'started again, it knows what was done');
    is(told(at($a, 'dead2', at => '/retry', more => '&gate=1')), '200 REPLAYED', '... and by whom');
}

# it lives: a lease is renewed however long that takes

{
    my @before = keys_of();
    my $owner = asked($a, 'long', at => '/long', more => '&gate=1');
    held('long');
    my ($key) = grep { my $k = $_; !grep { $_ eq $k } @before } keys_of();
    my $ends = sub { unpack('Q>', $redis->command('GETRANGE', $key, 28, 35)) };
    my $first = $ends->();
    my $w = asked($b, 'long', at => '/long', more => '&gate=1');

    ok(until_true { $redis->command('TIME')->[0] * 1000 > $first && $ends->() > $first },
       'longer than its lease: it is renewed');
    ok(!$w->readable(0), '... and still pending elsewhere');
    go('long');
    is(told($owner->response) . ', ' . told($w->response), '200 NEW, 200 WAITED', '... until it is done');
}


# --- what becomes of the Redis ---------------------------------------------------

# no script is there any more

{
    $redis->command(qw(SCRIPT FLUSH));
    is(told(at($a, 'scripts')), '200 NEW', 'its scripts are forgotten: sent again');
    heard();
    is(told(at($b, 'scripts')), '200 REPLAYED', '... and again');
}

# it goes, and comes back with what it had

{
    my $owner = asked($a, 'while', more => '&gate=1');
    held('while');

    my $keys = keys_of();
    $redis->kill;

    is(told(at($a, 'one', more => '&status=201&reason=Made%20It&h=X-A:%201&h=X-A:%202&size=70000')),
       '201 REPLAYED', 'no Redis: what is known is replayed');
    is(told(at($a, 'down')), '503 UNAVAILABLE', '... what is not is refused');
    is(executions('down'), 0, '... and not executed');

    my $from = time;
    is(told(at($a, "down$_")), '503 UNAVAILABLE', '... at once') for 1 .. 3;

    is(told(at($a, 'mine', at => '/local')), '200 NEW', '... or guarded here alone');
    is(told(at($a, 'mine', at => '/local')), '200 REPLAYED', '... ... once');

    go('while');
    is(told($owner->response), '200 NEW', 'what was claimed is answered');
    is(told(at($a, 'while', more => '&gate=1')), '200 REPLAYED', '... and replayed here');

    $redis->start;

    until_true { $a->log =~ /available again/ && keys_of() > $keys };
    heard();
    back($a, $b);
    ok(until_true { told(at($b, 'down')) eq '200 NEW' }, 'it is back: new ones are executed');
    is(told(at($b, 'mine', at => '/local')), '200 REPLAYED',
       '... what was guarded by the other one alone is known');
    is(executions('mine'), 1, '... executed once');
    heard();
    is(told(at($b, 'while', more => '&gate=1')), '200 REPLAYED', '... what it executed meanwhile, too');
    is(executions('while'), 1, '... executed once');
    ok($a->log =~ /redis "r" of zone "z" is unavailable: .*redis "r" of zone "z" is available again/s,
       '... as the log says');
}

# it does not answer

{
    $redis->pause;
    my $w = asked($a, 'slow', at => '/local');
    my $r = asked($a, 'slow2');
    is(told($r->response), '503 UNAVAILABLE', 'it does not answer: refused');
    $redis->resume;
    $w->response;
    ok(until_true { told(at($b, 'slow2')) eq '200 NEW' }, '... what was too late has bound nothing');
    is(executions('slow2'), 1, '... executed once');
    back($a, $b);
}

# it forgets

{
    my %before = map { $_ => 1 } keys_of();
    my $owner = asked($a, 'lost', more => '&gate=1');
    held('lost');
    $redis->command('DEL', grep !$before{$_}, keys_of());
    go('lost');
    is(told($owner->response), '200 NEW', 'it has forgotten what is executed');
    ok(until_true { $a->log =~ /\[alert\].*redis "r" of zone "z" has lost 1 claims/ }, '... the log says so');
    heard();
    is(told(at($b, 'lost', more => '&gate=1')), '200 REPLAYED', '... but the outcome is known');
}

# what is not ours

{
    my @before = keys_of();
    at($a, 'foreign');
    my ($key) = grep { my $k = $_; !grep { $_ eq $k } @before } keys_of();

    for my $value ('I9' . 'x' x 200, 'x') {
        $redis->command('SET', $key, $value);
        is(told(at($b, 'foreign')), '503 UNAVAILABLE', 'a value of nobody knows whom');
        is($redis->command('GET', $key), $value, '... stays');
    }

    my $n = () = $b->log =~ /\[error\].*value that is none of this version .*, token: [0-9a-f]{64}: .*the key "\Q$key\E" is removed/g;
    ok($n >= 1 && $n <= 2, '... each worker says so once') or diag($n);
    is(executions('foreign'), 1, '... not executed');

    # nor is the Redis asked for it in a loop

    my $calls = sub { ($redis->info('cmdstat_evalsha') // '') =~ /calls=(\d+)/ ? $1 : 0 };
    my $asked = $calls->();

    is(told(at($b, 'foreign', at => '/local')), '503 UNAVAILABLE', '... by local, either');
    cmp_ok($calls->() - $asked, '<', 1000, '... who asks once');
    is(executions('foreign'), 1, '... not executed');

    # what never ends for the scripts, which read no signs, and has ended for us

    @before = keys_of();
    at($a, 'endless');
    ($key) = grep { my $k = $_; !grep { $_ eq $k } @before } keys_of();

    my $record = $redis->command('GET', $key);
    substr $record, 44, 8, "\xff" x 8;
    $redis->command('SET', $key, $record);
    $asked = $calls->();

    is(told(at($b, 'endless')), '503 UNAVAILABLE', 'a record that ended before 1970');
    cmp_ok($calls->() - $asked, '<', 1000, '... who asks once');
    is(executions('endless'), 1, '... not executed');
    $redis->command('DEL', $key);
}

# by hand, at one of them

{
    my @before = keys_of();
    at($a, 'forget');
    my ($key) = grep { my $k = $_; !grep { $_ eq $k } @before } keys_of();

    my $r = $a->request('DELETE', '/api/zones/z/records', headers => ['Idempotency-Key: forget']);

    SKIP: {
        skip "no such api: $r->{status}", 2 if $r->{status} != 204;

        ok(until_true { !$redis->command('EXISTS', $key) }, 'forgotten by hand: there, too');
        my $there = at($b, 'forget');
        is(told($there), '200 NEW', '... fresh elsewhere');

        # what it does not know itself

        heard();
        # on a machine that is busy it may be told to come again
        my $said = sub {
            my ($method) = @_;

            until_true {
                $r = $a->request($method, '/api/zones/z/records', headers => ['Idempotency-Key: forget']);
                $r->{status} != 503;
            };

            return $r->{status};
        };

        is($said->('GET'), 200, 'one that only the other one knows is found') or diag($r->{body});
        is($said->('DELETE'), 204, '... and forgotten');
        ok(until_true { !$redis->command('EXISTS', $key) }, '... there');

        my $fence = $there->header('X-Fence');
        like($a->log, qr/forgotten by hand, token: [0-9a-f]{64}, zone: "z", fence: $fence,/, '... under its fence, as the log says');
    }
}

# all that it has, page by page

{
    my %told;
    $told{told(at($a, "list$_"))}++ for 1 .. 100;
    is($told{"200 NEW"}, 100, "a hundred more") or diag(explain(\%told));
    heard();

    my $have = grep /:[\w-]{43}$/, keys_of();
    my ($next, %listed, $lines) = ('/api/zones/z/records?tier=backing&limit=7');

    while ($next) {
        my $r;

        # a connection of that worker may not be back yet
        until_true { ($r = $a->get($next))->{status} == 200 };

        $lines += () = $r->{body} =~ /\n/g;
        $listed{$_}++ for $r->{body} =~ /"token":"(\w+)"/g;
        $next = ($r->header('Link') // '') =~ /<([^>]+)>; rel="next"/ ? $1 : '';
        $next = "/api/zones/z/$next" if $next && $next !~ m{^/};
    }

    # the foreign one is none

    cmp_ok($have, '>', 100, 'what it has');
    is(scalar keys %listed, $have - 1, '... is listed');
    is($lines, scalar keys %listed, '... each once');
}

# it lets only some of a worker's connections in: who finds his own closed asks by
# one that is there

{
    my $s = Redis->new(args => [qw(--maxclients 3)]);
    my $n = over($s, settings => 'connections 8;', workers => 1);
    my $known = sub { at($n, 'known') };

    until_true { told($known->()) eq '200 REPLAYED' };

    my $round = 0;
    my $all = sub {
        my $of = ++$round;
        my @c;

        # each in a batch of its own, and so by a connection of its own
        $s->pause;

        for (1 .. 12) {
            push @c, asked($n, "few$of-$_");
            $known->();
        }

        $s->resume;

        return !grep { told($_->response) ne '200 NEW' } @c;
    };

    # they are given up when there has been none for some time
    ok(until_true { $all->() }, 'one connection of many is there: that is asked');
    like($n->log, qr/max number of clients/, '... there are no more');
    $n->stop;
}

# a zone far too small

{
    my $n = over($redis, size => '64k', workers => 1);

    is(scalar(grep { told(at($n, "many$_", more => '&size=1000')) ne '200 NEW' } 1 .. 300), 0,
       'more than memory has room for');
    is(scalar(grep { told(at($n, "many$_", more => '&size=1000')) ne '200 REPLAYED' } 1 .. 300), 0,
       '... all of it is replayed');
    $n->stop;
}


# --- a reload that leaves the zone out ------------------------------------------

# What old workers execute is recorded all the same; the zone comes back as it was.

for my $left_out (1, 2) {
    my $n = over($redis);
    my $with = $n->{zone};
    (my $off = $server) =~ s/idempotency zone=z;/idempotency off;/;
    my $id = "left-out$left_out";

    is(told(at($n, "$id-known")), '200 NEW', 'known before');

    my $c = asked($n, $id, more => '&gate=1');

    held($id);
    ok($n->reload(zone => '', server => $off), "left out by $left_out") for 1 .. $left_out;
    is(told(at($n, "$id-free")), '200 -', '... nothing is protected');
    go($id);
    is(told($c->response), '200 NEW', '... an old worker ends');
    $c->close;
    ok($n->reload(zone => $with, server => $server), '... and brought back');
    is(told(at($n, $id, more => '&gate=1')), '200 REPLAYED', '... it knows that');
    is(told(at($n, "$id-known")), '200 REPLAYED', '... and what it knew');
    is(told(at($b, $id, more => '&gate=1')), '200 REPLAYED', '... and so does another nginx');
    is(told(at($n, "$id-new")), '200 NEW', '... and claims');
    is(executions($id), 1, '... executed once');
    $n->stop;
}


# --- a promise in writing -------------------------------------------------------

{
    my $n = over($redis, settings => 'replicas 1;', workers => 1);

    is(told(at($n, 'unsafe')), '503 UNAVAILABLE', 'no replica has it: refused');
    is(executions('unsafe'), 0, '... not executed');
    ok(until_true { told(at($b, 'unsafe')) eq '200 NEW' }, '... and given back');
    $n->stop;

    my $replica = Redis->new(args => ['--replicaof', '127.0.0.1 ' . $redis->port]);
    until_true { ($replica->info('master_link_status') // '') eq 'up' };

    $n = over($redis, settings => 'replicas 1;', workers => 1);
    ok(until_true { told(at($n, 'safe')) eq '200 NEW' }, 'a replica has it: passed on');
    my $key = (grep { /:[\w-]{43}$/ } keys_of())[0];
    is($replica->command('EXISTS', $key), 1, '... before it is answered');
    $n->stop;
}

# keys that make digests have to be the same

SKIP: {
    my $dir = File::Temp->newdir;
    my @files = map { my $f = "$dir/$_"; open my $h, '>', $f; print $h "digest " . $_ x 64 . "\n"; $f } qw(a b);
    chmod 0600, @files;
    chmod 0755, $dir;

    my $s = Redis->new;
    my ($x, $y) = map over($s, http => "idempotency_secret $_;\n"), @files;

    is(told(at($x, 'key')), '200 NEW', 'the first one says by which key');
    is(told(at($y, 'key')), '503 UNAVAILABLE', '... another one is refused');
    is(executions('key'), 1, '... not executed');
    like($y->log, qr/tells of another digest key/, '... as its log says');
    $_->stop for $x, $y;
}


# --- the directive --------------------------------------------------------------

for (['redis=', 'invalid parameter "redis="'],
     ['redis=r redis=r', 'invalid parameter "redis=r"'],
     ['redis=r state=x.db', '"idempotency_zone" directive takes either a "state" parameter or a "redis" parameter'],
     ["redis=r sync=strict", q{"idempotency_zone" directive takes "sync" and "max_size" with a "state" parameter only}])
{
    my ($ok, $said) = config_test(zone => "idempotency_zone zone=z:8m $_->[0];\n" . block($redis),
                                  server => $server);
    ok(!$ok && index($said, "[emerg] $_->[1]") >= 0, "refused: $_->[0]") or diag($said);
}

{
    my ($ok, $said) = config_test(zone => "idempotency_zone zone=z:8m redis=r;\n", server => $server);
    ok(!$ok && $said =~ /"r"/, 'a block that is nowhere') or diag($said);
}

$_->stop for $a, $b;
done_testing();
