#!/usr/bin/perl

# docs/operation.md, "Redis": an outcome that is too large for the way to the server
# is not sent for ever: it is not kept there, and what goes the same way goes on.

use lib 't/lib';
use Between;
use Idempotency;
use Redis;

plan(skip_all => 'no redis-server') if !Redis->programs;

my $redis = Redis->new;
my $between = Between->new($redis->port);

my ($a, $b) = map nginx(zone => 0, http => <<"EOC", server => <<'EOS', allow => qr/is unavailable: /), $between->port, $redis->port;
    idempotency_redis r { server 127.0.0.1:$_; connections 1; timeout 1s; }
    idempotency_zone zone=z:8m redis=r;
    idempotency_max_response 2m;
EOC
    location / {
        idempotency zone=z;
        add_header X-Status $idempotency_status always;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /local { idempotency zone=z; idempotency_unavailable local; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /api/ { idempotency_api; }
EOS

my $size = 800_000;

sub order {
    my ($n, $id, $more) = @_;
    my $r;

    # on a busy machine an answer may be too late
    until_true { ($r = $n->post("/?id=$id" . ($more // ''), key => $id, body => 'b'))->{status} != 503 };

    return $r;
}

sub told_all { until_true { $a->get('/api/zones/z')->{body} =~ /"undelivered":0\b/ } }

sub errors {
    my ($body, $sum) = ($a->get('/api/metrics')->{body}, 0);

    $sum += $1 while $body =~ /^nginx_idempotency_store_errors_total\S* (\d+)/mg;
    return $sum;
}


is(told(order($a, 'warm')), '200 NEW', 'a Redis');
told_all();
is(told(order($b, 'warm')), '200 REPLAYED', '... that two nginx share');

# a large one takes four seconds

$between->now('slow');

my $from = $redis->info('total_net_input_bytes');

is(told(order($a, 'large', "&size=$size")), '200 NEW', 'a way that is slow, a large outcome');
ok($a->wait_log(qr/\[error\].*zone "z": a response of \d+ bytes .*is not kept/), '... the log says that it is not kept');
ok(told_all(), '... which is told');
cmp_ok($redis->info('total_net_input_bytes') - $from, '<', 1.5 * $size, '... it was not sent again and again');
is(told(order($_, 'large', "&size=$size")), '409 NOT_KEPT', '... all know that it was executed') for $a, $b;
is(executions('large'), 1, '... once');
is(() = $a->log =~ /is not kept/g, 1, '... said once');

# others go on

ok((until_true { told(order($a, 'small')) =~ /^200/ }), '... a small one goes');
told_all();
is(told(order($b, 'small')), '200 REPLAYED', '... and is kept');

# one that is full answers: nobody executes by his own memory what others know

told_all();
$redis->command(qw(CONFIG SET maxmemory 1));
ok((until_true { $a->post('/local?id=full', key => 'full', body => 'b')->{status} == 503 }), 'full: local refuses');
is($a->post('/local?id=full2', key => 'full2', body => 'b')->{status}, 503, '... each time');
is(executions($_), 0, '... nothing is executed') for 'full', 'full2';
$redis->command(qw(CONFIG SET maxmemory 0));
ok((until_true { $a->post('/local?id=full', key => 'full', body => 'b')->{status} == 200 }), '... until there is room');

# one that hangs is no such way: nothing can be told of it

$between->now('flow');
until_true { told(order($a, 'back')) =~ /^200/ };

my $owner = $a->start('POST', "/?id=hangs&size=$size&gate=1", key => 'hangs', body => 'b');

held('hangs');
$between->now('deaf');
go('hangs');

my $first = $owner->response;
is(told($first), '200 NEW', 'a server that hangs');
my $vain = errors();
ok((until_true { errors() >= $vain + 5 }), '... is told in vain');
$between->now('flow');
ok(told_all(), '... is told when it comes back');
same_replay($first, order($b, 'hangs', "&size=$size&gate=1"), '... all of it');
is(() = $a->log =~ /is not kept/g, 1, '... which is no news');

$_->stop for $a, $b;
done_testing();
