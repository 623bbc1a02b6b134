#!/usr/bin/perl

# docs/operation.md, "Upgrade": a record names the version of its fingerprint, and
# a module compares by the last version as well as by its own. Where two versions
# share a store, the older one is written.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Versions;
use Idempotency;
use Redis;
use Restart;
use Rows;

use File::Temp ();

if ($Versions::static) {
    plan(skip_all => 'two modules of one name');
}

if (my $why = no_state()) {
    plan(skip_all => $why);
}

my $tmp = File::Temp->newdir('versions-XXXXXX', TMPDIR => 1);
chmod 0755, $tmp;

my $server = <<'EOC';
    idempotency zone=z;
    idempotency_normalize form json multipart text;
    idempotency_key $http_idempotency_key $idempotency_field_key;
    idempotency_wait_timeout 10m;
    client_body_buffer_size 16k;
    proxy_read_timeout 10m;

    add_header X-Status $idempotency_status always;
    add_header X-Token $idempotency_token always;
    add_header X-Digest $idempotency_digest always;
    add_header X-Reason $idempotency_reason always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /retry { idempotency_in_doubt retry; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /content { idempotency_missing_key content; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /similar { idempotency_similar reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /figures/ { idempotency_api; }
EOC

my $files = 0;

# Options for one version, with a file.

sub with {
    my ($version, $path) = @_;

    return (of_version($version), server => $server,
            http => "idempotency_zone zone=z:16m state=$path;\n");
}

# The version that a record names, once it is there.

sub named {
    my ($path, $r) = @_;

    my $token = $r->header('X-Token');

    return hex until_true {
        sqlite($path, "SELECT substr(hex(parts), 55, 2) FROM records WHERE token = x'$token'");
    };
}

sub same_file { return "$tmp/z" . ++$files . '.db' }


# Bodies of each kind, spelt in two ways, and another one.

my $multi = sub {
    my ($boundary, %part) = @_;

    return join('', map { "--$boundary\r\nContent-Disposition: form-data; name=\"$_\"\r\n\r\n"
                          . "$part{$_}\r\n" } sort keys %part) . "--$boundary--\r\n";
};

my %body = (
    none => [ undef, '', '', 'x' ],
    bytes => [ 'application/octet-stream', "\0\1\2", "\0\1\2", "\0\1\3" ],
    large => [ 'application/octet-stream', 'x' x 300_000, 'x' x 300_000, 'x' x 300_001 ],
    text => [ 'text/plain', 'a b', " a \n b", 'a c' ],
    form => [ 'application/x-www-form-urlencoded', 'a=1&b=2', 'b=%32&a=1', 'a=1&b=3' ],
    json => [ 'application/json', '{"a":1,"b":[2]}', '{ "b": [2.0], "a": 1 }', '{"a":1}' ],
    broken => [ 'application/json', '{"a":', '{"a":', '{"a" :' ],
    multipart => [ sub { "multipart/form-data; boundary=$_[0]" },
                   [ 'A', $multi->('A', a => 1, f => 'y' x 40_000) ],
                   [ 'BBB', $multi->('BBB', f => 'y' x 40_000, a => 1) ],
                   [ 'A', $multi->('A', a => 2, f => 'y' x 40_000) ] ],
    'multipart, broken' => [ 'multipart/form-data; boundary=A', '--A', '--A', '--B' ],
    'key in the body' => [ 'application/json', '{"key":"in-body","a":1}',
                           '{"a":1.0,"key":"in-body"}', '{"key":"in-body","a":2}' ],
);

sub ask {
    my ($n, $kind, $which, %o) = @_;

    my ($type, @spelt) = @{$body{$kind}};
    my $bytes = $spelt[$which];

    ($type, $bytes) = ($type->($bytes->[0]), $bytes->[1]) if ref $type;

    my $id = $kind =~ tr/a-z//cdr;

    return $n->post("/x?id=$id$files", defined $type ? (type => $type) : (),
                    $kind =~ /key/ ? () : (key => "key-$kind"), body => $bytes, %o);
}

sub cookie {
    my ($n, $id, $cookie, %o) = @_;

    return $n->post("/x?id=$id$files", key => $id, body => 'b',
                    headers => [ "Cookie: $cookie" ], %o);
}


# --- one after the other ---------------------------------------------------------

my $path = same_file();
my $n = outliving(with(1, $path));

my %first = map { $_ => ask($n, $_, 0) } sort keys %body;

is(told(@first{sort keys %body}), join(', ', ('200 NEW') x keys %body), 'in version 1');

for ([ 'steady', 'SINCE-VERSION-2=1; s=1' ], [ 'ticks', 'SINCE-VERSION-2=1; s=1' ],
     [ 'other', 's=1' ])
{
    is(told(cookie($n, @$_)), '200 NEW', "... with cookies, $_->[0]");
}

is(named($path, $first{$_}), 1, "... a record says so, $_") for sort keys %body;

# claimed, and never ended

my $c = $n->start(POST => "/retry?id=doubt$files&gate=1", key => 'doubt', body => 'b');
held("doubt$files");
until_true { sqlite($path, 'SELECT count(*) FROM claims') };
$n->down('KILL');
$c->close;
go("doubt$files");

$n->{allow} = qr/signal 9|fingerprint is of version 9|has fingerprints of version/;

$n->up(with(2, $path));

for my $kind (sort keys %body) {
    my $again = ask($n, $kind, 1);

    same_replay($first{$kind}, $again, "in version 2: $kind");
    is($again->header('X-Token'), $first{$kind}->header('X-Token'), '... the same token');
    is($again->header('X-Digest'), $first{$kind}->header('X-Digest'), '... and digest');

    my $other = ask($n, $kind, 2);

    is(told($other) . ' ' . ($other->header('X-Reason') // ''), '409 CONFLICT body',
       '... and for another one it is a conflict');
}

is(told(cookie($n, steady => 'SINCE-VERSION-2=1; s=1')), '200 REPLAYED', 'the same cookies');

for ([ ticks => 'SINCE-VERSION-2=2; s=1' ], [ other => 's=2' ]) {
    my $r = cookie($n, @$_);

    is(told($r) . ' ' . $r->header('X-Reason'), '409 CONFLICT identity',
       "... others: as version 1 has it, $_->[0]");
}

is(told($n->post("/retry?id=doubt$files&gate=1", key => 'doubt', body => 'c')),
   '409 CONFLICT', 'what is in doubt, with another body');

my $taken = $n->start(POST => "/retry?id=doubt$files&gate=1", key => 'doubt', body => 'b');
held("doubt$files");
go("doubt$files");
is(told($taken->response), '200 NEW', '... it may be taken over');
is(executions("doubt$files"), 2, '... as retry says');
$taken->close;

# what is new

my $new = cookie($n, fresh => 'SINCE-VERSION-2=1; s=1');

is(named($path, $new), 2, 'what is new is of version 2');
is(told(cookie($n, fresh => 'SINCE-VERSION-2=2; s=1')), '200 REPLAYED',
   '... which ignores one cookie more');
isnt($n->post("/x?id=d$files", key => 'digest', body => 'b')->header('X-Digest'),
     $first{bytes}->header('X-Digest'), '... and digests in another way');

for my $at ('content', 'similar') {
    my @o = ("/$at?id=$at$files", body => 'b', $at eq 'similar' ? (key => 's') : ());

    is(told($n->post(@o), $n->post(@o)), '200 NEW, 200 REPLAYED', "... $at");
}

is(told($n->post("/similar?id=similar$files", key => 's2', body => 'b')), '409 SIMILAR',
   '... with another key');

# and back

$n->down('QUIT');

my $before = sqlite($path, 'SELECT version, instance FROM meta');
is((split /\|/, $before)[0], 2, 'the file has version 2');

my $why = qr/has fingerprints of version 2, this module knows 1 to 1; load the module/;

my ($ok, $said) = config_test(with(1, $path));
ok(!$ok && $said =~ $why, '... which version 1 refuses: nginx -t') or diag($said);

# a start serves all else
$n->up(with(1, $path));
is(told(cookie($n, fresh => 'SINCE-VERSION-2=3; s=1')), '503 UNAVAILABLE', '... a start');
like($n->log, $why, '... which says why');
$n->down('QUIT');
is(sqlite($path, 'SELECT version, instance FROM meta'), $before, '... and leaves it');

$n->up(with(2, $path));
is(told(cookie($n, fresh => 'SINCE-VERSION-2=3; s=1')), '200 REPLAYED', '... to version 2');

# of one that is to come

my $token = $new->header('X-Token');

$n->down('QUIT');
sqlite($path, "UPDATE meta SET version = 4");
$n->up(with(2, $path));
is(told(cookie($n, fresh => 'SINCE-VERSION-2=3; s=1')), '503 UNAVAILABLE', 'of version 4: refused');
like($n->log, qr/has fingerprints of version 4, this module knows 1 to 2;/, '... as the log says');
$n->down('QUIT');
sqlite($path, "UPDATE meta SET version = 2");
$n->stop;


# --- beside each other -------------------------------------------------------------

# Whoever claims, all write version 1.

for my $first (1, 2) {
    my $path = same_file();

    my $old = outliving(with(1, $path));
    my $young = outliving(with(2, $path));

    my ($one, $two) = $first == 1 ? ($old, $young) : ($young, $old);
    my $name = "first version $first";

    my %r = (one => cookie($one, 'by-one' => 'SINCE-VERSION-2=1; s=1'),
             two => cookie($two, 'by-two' => 'SINCE-VERSION-2=1; s=1'));

    is(told(@r{qw(one two)}), '200 NEW, 200 NEW', "$name: both claim");
    is(named($path, $r{$_}), 1, '... version 1 is written') for qw(one two);

    for ([ $one, 'by-two' ], [ $two, 'by-one' ]) {
        my ($nginx, $key) = @$_;

        is(told(cookie($nginx, $key => 'SINCE-VERSION-2=1; s=1')), '200 REPLAYED',
           '... each knows what the other one did');

        my $r = cookie($nginx, $key => 'SINCE-VERSION-2=2; s=1');
        is(told($r) . ' ' . $r->header('X-Reason'), '409 CONFLICT identity',
           '... and compares as version 1 does');
    }

    # one waits for the other

    my @o = ("/x?id=wait$files&gate=1", key => 'wait', body => 'b');
    my $c = $one->start(POST => @o);
    held("wait$files");
    my ($w) = $two->racing(sub { $two->start(POST => @o) });

    is($w->readable ? 1 : 0, 0, '... a repeat waits at the other');
    go("wait$files");
    is(told($c->response, $w->response), '200 NEW, 200 WAITED', '... until it ends');
    is(executions("wait$files"), 1, '... executed once');
    $_->close for $c, $w;

    # a reload stays with it, a restart alone does not

    $old->down('QUIT');
    $old->stop;

    is($young->reload, 1, '... a reload of the one that is left');
    is(named($path, cookie($young, 'reloaded' => 's=1')), 1, '... goes on with version 1');

    $young->restart('QUIT');
    is(named($path, cookie($young, 'restarted' => 's=1')), 2,
       '... a restart begins with version 2');
    is(told(cookie($young, 'by-one' => 'SINCE-VERSION-2=1; s=1')), '200 REPLAYED',
       '... and knows what was before');
    $young->stop;
}


# --- a binary upgrade ----------------------------------------------------------------

{
    my $path = same_file();
    my $n = outliving(with(1, $path));

    is(told(cookie($n, 'before' => 's=1')), '200 NEW', 'USR2: in version 1');
    $n->configured(with(2, $path));
    $n->upgrade;
    is(told(cookie($n, 'before' => 's=1')), '200 REPLAYED', '... known beside version 2');
    $n->retire;
    is(told(cookie($n, 'before' => 's=1')), '200 REPLAYED', '... and behind it');
    is(named($path, cookie($n, 'behind' => 's=1')), 1, '... which goes on with version 1');
    $n->stop;
}


# --- what can't be compared -----------------------------------------------------------

{
    my $path = same_file();
    my $n = outliving(with(2, $path));

    my @r = map { cookie($n, "future$_" => 's=1') } 1, 2;
    my @tokens = map { named($path, $_); $_->header('X-Token') } @r;

    $n->down('QUIT');

    # another version, with the sum that its row has then

    for (@tokens) {
        my $parts = sqlite($path, "SELECT hex(parts) FROM records WHERE token = x'$_'");

        sqlite($path, "UPDATE records SET parts = x'" . ($parts =~ s/^(.{54})02/${1}09/r)
                      . "' WHERE token = x'$_'");
        resum($path, $_);
    }

    $n->up;

    is(told(map { cookie($n, "future$_" => 's=1') } 1, 2, 1), join(', ', ('503 UNAVAILABLE') x 3),
       'of a version that is not known: nothing is compared');
    is(scalar(() = $n->log =~ /\[error\].*a fingerprint is of version 9, and this module knows 1 to 2/g),
       1, '... which is said once');
    is(executions("future1$files"), 1, '... nor executed');
    $n->stop;
}


# --- over a Redis -----------------------------------------------------------------------

if (!Redis->programs) {
    diag('no Redis');
    done_testing();
    exit;
}

{
    my $redis = Redis->new;

    my $over = sub {
        return (of_version($_[0]), server => $server, http => join "\n",
                'idempotency_redis r { server unix:' . $redis->path . '; prefix v:; timeout 5s; }',
                'idempotency_zone zone=z:16m redis=r;');
    };

    my $stamp = sub { return (split / /, $redis->command('GET', 'v:z:stamp') // '')[2] };

    # of all records there are

    my $written = sub {
        return join ' ', sort { $a <=> $b }
               map { ord substr $redis->command('GETRANGE', $_, 3, 3), 0, 1 }
               grep { !/stamp$/ } @{$redis->command('KEYS', 'v:*')};
    };

    my $old = nginx($over->(1));

    is(until_true { $stamp->() }, 1, 'a Redis has the version of who came first');

    my $young = nginx($over->(2));

    is(told(cookie($old, redis1 => 'SINCE-VERSION-2=1; s=1'),
            cookie($young, redis2 => 'SINCE-VERSION-2=1; s=1')),
       '200 NEW, 200 NEW', '... both claim');
    is($stamp->(), 1, '... it stays so');
    is($written->(), '1 1', '... and both write that');

    for ([ $old, 'redis2' ], [ $young, 'redis1' ]) {
        my ($nginx, $key) = @$_;

        is(told(cookie($nginx, $key => 'SINCE-VERSION-2=1; s=1')), '200 REPLAYED',
           '... each knows what the other one did');
        is(told(cookie($nginx, $key => 'SINCE-VERSION-2=2; s=1')), '409 CONFLICT',
           '... and compares as version 1 does');
    }

    # raised by hand

    $redis->command('SET', 'v:z:stamp', $redis->command('GET', 'v:z:stamp') =~ s/1$/2/r);
    is($_->reload, 1, 'raised, and a reload') for $young, $old;

    $old->{allow} = qr/fingerprints of version 2/;

    is(told(cookie($young, redis3 => 'SINCE-VERSION-2=1; s=1')), '200 NEW', '... of the newer');
    is($written->(), '1 1 2', '... which writes version 2');
    is(told(cookie($young, redis3 => 'SINCE-VERSION-2=2; s=1')), '200 REPLAYED',
       '... by its own list');
    is(told(cookie($young, redis1 => 'SINCE-VERSION-2=1; s=1')), '200 REPLAYED',
       '... and knows what is of version 1');
    is(told(cookie($old, redis4 => 's=1')), '503 UNAVAILABLE',
       '... the older one is refused what it would not know');
    like($old->log, qr/its "v:z:stamp" tells of fingerprints of version 2, and this module knows 1 to 1/,
         '... and says why');

    is(executions("redis$_$files"), 1, "... $_ was executed once") for 1 .. 3;
    is(executions("redis4$files"), 0, '... and the fourth never');

    $_->stop for $old, $young;
}

done_testing();
