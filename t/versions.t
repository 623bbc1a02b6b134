#!/usr/bin/perl

# A record names the version of its fingerprint, and so does a store. There is one
# version: what has another one can't be compared, and is refused.

use lib 't/lib';
use Idempotency;
use Redis;
use Restart;
use Rows;

use File::Temp ();

if (my $why = no_state()) {
    plan(skip_all => $why);
}

my $tmp = File::Temp->newdir('versions-XXXXXX', TMPDIR => 1);
chmod 0755, $tmp;

my $path = "$tmp/z.db";

my @with = (zone => 0, http => "idempotency_zone zone=z:16m state=$path;\n",
            server => <<'EOC');
    idempotency zone=z;

    add_header X-Status $idempotency_status always;
    add_header X-Token $idempotency_token always;
    add_header X-Reason $idempotency_reason always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /content { idempotency_missing_key content; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

sub seen {
    return join ', ', map { join ' ', $_->{status}, $_->header('X-Status'),
                                      $_->header('X-Reason') // () } @_;
}


# --- a record --------------------------------------------------------------------

my $n = outliving(@with);

my @keyed = ('/x?id=keyed', key => 'k', body => 'b');
my @content = ('/content?id=content', body => 'b');
my @now = ('/x?id=now', key => 'now', body => 'b');

my @first = map { $n->post(@$_) } \@keyed, \@content, \@now;

is(seen(@first), join(', ', ('200 NEW') x 3), 'three records');
$n->down('QUIT');

# as a later module would have written the first two

for my $token (map { $_->header('X-Token') } @first[0, 1]) {
    my $parts = sqlite($path, "SELECT hex(parts) FROM records WHERE token = x'$token'");

    is(substr($parts, 54, 2), '01', 'a record has version 1');

    substr $parts, 54, 2, '02';
    sqlite($path, "UPDATE records SET parts = x'$parts' WHERE token = x'$token'");
    resum($path, $token);
}

$n->up;

is(seen($n->post(@now)), '200 REPLAYED', 'what is of this version is known');
is(seen($n->post(@keyed)), '409 CONFLICT settings', 'another one is a conflict');
is(seen($n->post(@keyed)), '409 CONFLICT settings', '... again');
is(seen($n->post(@keyed[0 .. 2], body => 'other')), '409 CONFLICT settings', '... whatever is asked');
is(seen($n->post(@content)), '409 CONFLICT settings', '... so is that of content');
is(executions('keyed') . executions('content'), '11', '... neither is executed again');

$n->down('QUIT');


# --- a file ----------------------------------------------------------------------

sqlite($path, 'UPDATE meta SET version = 2');

$n->{allow} = qr/fingerprints of version 2/;
$n->up;

is(seen($n->post(@now)), '503 UNAVAILABLE', 'a file of another version is not used');
is(sqlite($path, 'SELECT version FROM meta'), 2, '... and is left as it is');

$n->stop;


# --- a Redis ---------------------------------------------------------------------

SKIP: {
    skip('no Redis', 2) unless Redis->programs;

    my $redis = Redis->new;

    $n = nginx(@with, http => 'idempotency_redis r { server unix:' . $redis->path . '; prefix v:; }'
                              . "\nidempotency_zone zone=z:16m redis=r;\n");

    my $stamp = until_true { $redis->command('GET', 'v:z:stamp') };

    $redis->command('SET', 'v:z:stamp', $stamp =~ s/^2 \S+ \K1/2/r);
    is($n->reload, 1, 'a stamp of another version, and a reload');
    $n->{allow} = qr/another version of the module/;

    is(seen($n->post('/x?id=redis', key => 'k', body => 'b')), '503 UNAVAILABLE', '... it is not used');

    $n->stop;
}

done_testing();
