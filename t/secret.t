#!/usr/bin/perl

# docs/operation.md, "Keys": idempotency_secret. What its file may say; that by a
# digest key nothing of a client can be tried that a store or a log has, and that
# a store goes on with the key that it has.

use lib 't/lib';
use Digest::SHA qw(hmac_sha256 sha256);
use File::Temp ();
use MIME::Base64 qw(encode_base64);

use Idempotency;
use Redis;
use Restart;
use Rows;


my $tmp = File::Temp->newdir('secret-XXXXXX', TMPDIR => 1);
chmod 0755, $tmp;

my $made = 0;

# A file of keys, of the workers' user or not: the master reads it.

sub file {
    my ($text, $mode) = @_;

    my $name = "$tmp/secret" . ++$made;

    open my $f, '>:raw', $name or die "$name: $!";
    print $f $text;
    close $f or die "$name: $!";
    chmod $mode // 0600, $name;

    return $name;
}

my ($key, $other, $third) = map { unpack 'H*', sha256("key $_") } 1 .. 3;

my $server = <<'EOC';
    idempotency zone=z;
    add_header X-Status $idempotency_status always;
    add_header X-Token $idempotency_token always;
    add_header X-Digest $idempotency_digest always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /content {
        idempotency_missing_key content;
        idempotency_identity $cookie_visitor;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
    location /status/ { idempotency_api; }
EOC

sub with {
    my ($secret) = @_;

    return (server => $server,
            http => defined $secret ? "idempotency_secret $secret;\n" : '');
}

sub tested { return config_test(with(@_)) }


# --- what the file may say --------------------------------------------------------

sub wrong {
    my ($text, $why, $line) = @_;

    my $name = file($text);
    my ($ok, $said) = tested($name);
    my @said = $said =~ /\[emerg\] (?:\d+#\d+: )?(.*)/g;

    is_deeply([ $ok ? 'ok' : 'refused', @said ],
              [ 'refused', $line ? "$why in $name:$line" : $why =~ s/FILE/$name/r ],
              "refused: $why") or diag($said);
    unlike($said, qr/0123456789/, '... nothing of it is told');
}

wrong("digest 0123456789\n", 'a key of less than 32 bytes', 1);
wrong("\n# keys\nseal 0123456789abcdef_\n",
      'a key that is neither hexadecimal nor base64', 3);
wrong("0123456789$key\n", 'neither "digest" nor "seal"', 1);
wrong("digest $key\nseal $other $key\n", 'duplicate key', 2);
wrong("digest $key\ndigest $other\n", 'duplicate "digest"', 2);
wrong("digest $key $other\n", 'not exactly one key of "digest"', 1);
wrong("seal\n", 'no key of "seal"', 1);
wrong("seal $key\0\n", 'a key that is neither hexadecimal nor base64', 1);

for ([ "# none\n", 'no keys in "FILE"' ],
     [ '#' x 70000, '"FILE" is too large, it may have 65536 bytes' ])
{
    my $name = file($_->[0]);
    my ($ok, $said) = tested($name);
    my $why = $_->[1] =~ s/FILE/$name/r;

    ok(!$ok && $said =~ m{\[emerg\] (?:\d+#\d+: )?\Q$why\E in \S+/nginx\.conf:\d+$}m,
       "refused: $_->[1]") or diag($said);
}

for ([ "$tmp/none", qr/\[emerg\].*open\(\) "\Q$tmp\E\/none" failed \(2: .* in \S+nginx\.conf:/ ],
     [ "$tmp", qr/\[emerg\].*"\Q$tmp\E" is not a regular file in \S+nginx\.conf:/ ],
     [ file("seal $key\n") . ' more',
       qr/invalid number of arguments in "idempotency_secret" directive/ ],
     [ file("seal $key\n") . ";\nidempotency_secret " . file("seal $key\n"),
       qr/"idempotency_secret" directive is duplicate in / ])
{
    my ($ok, $said) = tested($_->[0]);

    ok(!$ok && $said =~ $_->[1], "refused: $_->[0]" =~ s/\Q$tmp\E/TMP/gr =~ s/\n/ /gr)
        or diag($said);
}

{
    my ($ok, $said) = config_test(server => 'idempotency_secret ' . file("seal $key\n") . ';');

    ok(!$ok && $said =~ /"idempotency_secret" directive is not allowed here/,
       'not in a server') or diag($said);
}

for ("digest $key\n", "seal $key\n", "digest $key\nseal $other $third",
     "# the store's\r\n\r\ndigest $key\r\n\tseal\t$other\t# since May\r\n",
     'digest ' . encode_base64(pack('H*', $key), ''),
     'seal ' . encode_base64('x' x 100, ''))
{
    my ($ok, $said) = tested(file($_));

    ok($ok && $said !~ /\[(?:warn|error)\]/, 'taken: ' . s/\s+/ /gr) or diag($said);
}

for my $mode (0604, 0640) {
    my $name = file("digest $key\n", $mode);
    my ($ok, $said) = tested($name);

    my @warned = $said =~ /\[warn\] (?:\d+#\d+: )?(.*) in \S+:\d+$/mg;

    is_deeply([ $ok, @warned ],
              [ 1, $mode == 0604 ? "\"$name\" is open to others, with the mode 0604" : () ],
              sprintf 'a file of mode %04o', $mode) or diag($said);
}


# --- tokens and fingerprints ------------------------------------------------------

sub field { return pack('Q>', length $_[0]) . $_[0] }

# All that a request is told by, as its variables show it.

sub told_by {
    my ($n, $id) = @_;

    my $r = $n->post("/x?id=$id", key => "key-$id", body => "body of $id",
                     type => 'text/x');
    my $c = $n->post("/content?id=$id-c", body => "body of $id", type => 'text/x');

    return map { $_->header('X-Token'), $_->header('X-Digest') } $r, $c;
}

my $plain = nginx(with(undef));
my $keyed = nginx(with(file("digest $key\n")));
my $same = nginx(with(file("seal $third\ndigest "
                           . encode_base64(pack('H*', $key), '') . "\n")));
my $another = nginx(with(file("digest $other\n")));

my @plain = told_by($plain, 'a');
my @keyed = told_by($keyed, 'a');

is_deeply([ told_by($same, 'a') ], \@keyed, 'one key, one digest');

my %seen = map { $_ => 1 } map { told_by($_, 'a') } $plain, $keyed, $another;
is(scalar keys %seen, 9, 'another key, other digests');

my $token = "\x01T" . field('localhost') . field('key-a');

is($plain[0], unpack('H*', sha256($token)), 'a token without a key: SHA-256');
is($keyed[0], unpack('H*', hmac_sha256($token, pack 'H*', $key)),
   '... and with one: HMAC');

unlike($keyed->log, qr/$plain[0]|$plain[1]|$plain[2]|$key/,
       'nothing that could be tried is in the log');

$_->stop for $plain, $same, $another;

{
    my $n = nginx(http => 'idempotency_secret ' . file("digest $key\n") . ';',
                  server => <<'EOC');
    location /api { idempotency_api; }
    location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

    $n->post('/x?id=api', key => 'key-a', body => 'b');

    my $r = $n->get('/api/zones/z/records?key=key-a');

    like($r->{body}, qr/"token":\s*"$keyed[0]"/, 'a token is found by its key, where nothing is protected')
        or diag($r->{raw});
    $n->stop;
}


# --- a reload ---------------------------------------------------------------------

# Whatever it says, nginx goes on with what it has.

sub ask { return told($_[0]->post("/x?id=r", key => 'r', body => 'b')) }

is(ask($keyed), '200 NEW', 'a first execution');

for ([ file("digest $other\n"), 'another digest key while previously it had one' ],
     [ file("seal $key\n"), 'no digest key while previously it had one' ],
     [ undef, 'no digest key while previously it had one' ])
{
    my $from = length $keyed->log;

    is($keyed->reload(with($_->[0])), 0, "a reload is refused: $_->[1]");
    like(substr($keyed->log, $from),
         qr/\[emerg\].*idempotency_zone "z" has $_->[1]; only a restart can/,
         '... and says why');
    is(ask($keyed), '200 REPLAYED', '... and nginx goes on');
}

for (file("digest $key\n"), file("seal $other\ndigest $key\nseal $third\n")) {
    is($keyed->reload(with($_)), 1, 'a reload with the same digest key');
    is(ask($keyed), '200 REPLAYED', '... knows its tokens');
}

$keyed->{allow} = qr/\[emerg\].*has (?:another|no) digest key/;
$keyed->stop;

{
    my $n = nginx(with(undef));

    is(ask($n), '200 NEW', 'without a key');
    is($n->reload(with(file("digest $key\n"))), 0, '... a reload with one is refused');
    like($n->log, qr/\[emerg\].*"z" has a digest key while previously it had none;/,
         '... and says why');
    is(ask($n), '200 REPLAYED', '... and nginx goes on');
    is($n->reload(with(file("seal $key\n"))), 1, 'a key to seal by may come');
    is(ask($n), '200 REPLAYED', '... and changes no token');

    $n->{allow} = qr/\[emerg\].*has a digest key/;
    $n->stop;
}

# A zone that a reload leaves out is kept while old workers are at work in it, and
# comes back with what it was made with.

{
    my $n = nginx(with(file("digest $key\n")));

    my $held = $n->start(POST => '/x?id=held&gate=1', key => 'held', body => 'b');
    held('held');

    is($n->reload(zone => 0, http => '', server => 'location / { return 204; }'), 1,
       'a reload without the zone');
    is($n->reload(zone => undef, with(file("digest $other\n"))), 0,
       '... and one with another key are two');
    is($n->reload(with(file("digest $key\n"))), 1, '... with the same one it is back');

    my $again = $n->start(POST => '/x?id=held&gate=1', key => 'held', body => 'b');

    # it has met what is pending
    until_true { $n->get('/status/metrics')->{body} =~ /^nginx_idempotency_races_total\{.*\} 1$/m };

    go('held');
    is(told($held->response, $again->response), '200 NEW, 200 WAITED',
       '... and knows what is pending');
    $_->close for $held, $again;

    $n->{allow} = qr/\[emerg\].*has another digest key/;
    $n->stop;
}


# --- a store in a file ------------------------------------------------------------

sub order {
    my ($n, $id, %o) = @_;

    return $n->post("/x?id=s-$id&status=201&body=response%20to%20$id", key => $id,
                    body => 'b', %o);
}

FILE: {

if (my $why = no_state()) {
    diag("no file: $why");
    last FILE;
}

sub files { return join '', map { slurp($_) } glob "$_[0]*" }

sub in_file {
    my ($bytes, $path) = @_;

    return until_true { index(files($path), $bytes) >= 0 };
}

{
    my %at;

    for my $secret (undef, file("digest $key\n")) {
        my $n = outliving(zone => with_state('batched'), with($secret));

        my @told = told_by($n, 'f');
        my $path = $n->root . '/z.db';

        # the last of them is there: so is all else

        in_file("id=f-c", $path);
        in_file(pack('H*', $told[2]), $path);

        $at{defined $secret ? 'keyed' : 'plain'} = [ \@told, files($path) ];
        $n->stop;
    }

    my ($digests, $bytes) = @{$at{plain}};

    my %tried = (
        'the token of a key' => pack('H*', $digests->[0]),
        'a token of content' => pack('H*', $digests->[2]),
        'the hint of a body' => substr(pack('H*', $digests->[1]), 0, 4),
    );

    for (sort keys %tried) {
        ok(index($bytes, $tried{$_}) >= 0, "without a key, a file has $_");
        ok(index($at{keyed}[1], $tried{$_}) < 0, '... with one, it has not');
    }
}

for my $path ("$tmp/z.db", "$tmp/odd %41?a=b#c.db") {
    my ($with, $else, $more) = (file("digest $key\n"), file("digest $other\n"),
                                file("digest $key\nseal $third\n"));

    my %as = (as_is => 1, zone => "idempotency_zone zone=z:16m \"state=$path\";\n");
    my $n = outliving(%as, with($with));

    is(ask($n), '200 NEW', 'a file that is made with a key');

    for ([ $else, qr/was made with another digest key than that of "idempotency_secret"/ ],
         [ undef, qr/was made with a digest key, and no "idempotency_secret" has one/ ])
    {
        my ($secret, $why) = @$_;
        my ($ok, $said) = config_test(%as, with($secret));

        ok(!$ok && $said =~ $why, '... is refused to another by nginx -t, beside it')
            or diag($said);
        is(ask($n), '200 REPLAYED', '... which harms nobody');

        $n->down('QUIT');

        my $before = files($path);

        ($ok, $said) = config_test(%as, with($secret));
        ok(!$ok && $said =~ $why, '... when it is gone') or diag($said);

        # a start serves all else
        $n->up(%as, with($secret));
        is(ask($n), '503 UNAVAILABLE', '... and by a start');
        like($n->log, $why, '... which says why');
        $n->down('QUIT');
        is(files($path), $before, '... and nothing has changed');

        $n->up(%as, with($with));
        is(ask($n), '200 REPLAYED', '... and is the same with its own');
    }

    $n->restart('QUIT', with($more));
    is(ask($n), '409 NOT_KEPT', '... and with a key to seal by, which opens nothing plain');

    $n->{allow} = qr/was made with/;
    $n->stop;
}

{
    my %as = (zone => "idempotency_zone zone=z:16m state=$tmp/plain.db;\n");
    my $n = outliving(%as, with(undef));

    is(ask($n), '200 NEW', 'a file that is made without a key');
    $n->down('QUIT');
    $n->up(%as, with(file("digest $key\n")));
    is(ask($n), '503 UNAVAILABLE', '... is refused to who has one');
    like($n->log, qr/was made without a digest key, and "idempotency_secret" has one/, '... and says why');
    $n->down('QUIT');

    $n->up(%as, with(file("seal $key\n")));
    is(ask($n), '409 NOT_KEPT', '... but not to who seals; what is plain may be forged');

    $n->{allow} = qr/was made without/;
    $n->stop;
}


# --- responses that are sealed ---------------------------------------------------

# What a response is stored as, once it is.

sub stored {
    my ($path, $token) = @_;

    return pack 'H*', until_true {
        sqlite($path, "SELECT hex(response) FROM records WHERE token = x'$token'");
    };
}

{
    my $path = "$tmp/sealed.db";
    my ($seal, $new) = ("seal $key\n", "seal $third $key\n");

    my %as = (zone => "idempotency_zone zone=z:16m state=$path;\n");
    my %response;

    # without a key, which is the control

    my $n = outliving(zone => "idempotency_zone zone=z:16m state=$tmp/open.db;\n",
                      with(undef));
    my $r = order($n, 'open');

    like(stored("$tmp/open.db", $r->header('X-Token')), qr/response to open/,
         'without a key a response is stored as it is');
    $n->stop;

    $n = outliving(%as, with(file($seal)));

    my %token;

    for my $id ('a' .. 'f') {
        $response{$id} = order($n, $id);
        $token{$id} = $response{$id}->header('X-Token');
    }

    my %bytes = map { $_ => stored($path, $token{$_}) } sort keys %token;

    unlike(join('', values %bytes), qr/response|X-Exec|HTTP/, 'with one it is sealed');
    is(length(files($path) =~ s/response to//r), length files($path),
       '... wherever it stands');

    $n->restart('QUIT');
    same_replay($response{a}, order($n, 'a'), '... and opens after a restart');

    # a reload brings a new one: it seals from now on, and both open

    is($n->reload(%as, with(file($new))), 1, 'a reload with a new key in front');
    same_replay($response{b}, order($n, 'b'), '... which goes on with the old one');

    $response{g} = order($n, 'g');
    $token{g} = $response{g}->header('X-Token');
    $bytes{g} = stored($path, $token{g});

    my %by = map { $_ => substr($bytes{$_}, -9) } keys %bytes;

    is($by{a}, $by{f}, '... one key, one name');
    isnt($by{a}, $by{g}, '... and seals by the new one');

    $n->restart('QUIT');
    same_replay($response{$_}, order($n, $_), "... $_ after a restart") for 'c', 'g';

    # the old one goes, and comes back

    $n->restart('QUIT', with(file("seal $third\n")));

    my $from = length $n->log;

    same_replay($response{g}, order($n, 'g'), 'without the old key: what is of the new');

    for my $id ('a', 'd') {
        $r = order($n, $id);
        is(told($r), '409 NOT_KEPT', "... $id is not kept");
        like($r->{body}, qr/\b201\b/, '... its status is told');
        unlike($r->{body}, qr/response to/, '... and nothing of it');
    }

    is(scalar(() = substr($n->log, $from) =~ /\[warn\].*zone "z": responses in the state file "\S+sealed\.db" can't be opened by any key of "idempotency_secret"/g),
       1, '... which is said once');

    $n->restart('QUIT', with(undef));
    is(told(order($n, 'g')), '409 NOT_KEPT', 'without any key');

    $n->restart('QUIT', with(file($new)));
    same_replay($response{$_}, order($n, $_), "with all of them: $_") for 'a', 'd', 'g';
    is(executions("s-$_"), 1, "... $_ was executed once") for 'a' .. 'g';

    # who can write to the file

    my %thief = (
        'takes the place of another' => sub {
            sqlite($path, "UPDATE records SET response = x'" . unpack('H*', $bytes{f})
                          . "' WHERE token = x'$token{$_[0]}'");
        },
        'is given another status' => sub {
            sqlite($path, "UPDATE records SET status = 200 WHERE token = x'$token{$_[0]}'");
        },
        'is given to another token' => sub {
            sqlite($path, "DELETE FROM records WHERE token = x'$token{$_[0]}'; "
                          . "UPDATE records SET token = x'$token{$_[0]}' "
                          . "WHERE token = x'$token{e}'");
        },
    );

    $n->down('QUIT');

    my %victim = (b => 'takes the place of another', c => 'is given another status',
                  d => 'is given to another token');

    for (sort keys %victim) {
        $thief{$victim{$_}}->($_);
        resum($path, $token{$_});
    }

    # a row whose sum is made anew, and nothing else, is as it was

    resum($path, $token{a});

    $from = length $n->log;
    $n->up;
    same_replay($response{a}, order($n, 'a'), 'a sum is nothing to who can write');

    for my $id (sort keys %victim) {
        $r = order($n, $id, body => 'b');

        is(told($r), $id eq 'd' ? '409 CONFLICT' : '409 NOT_KEPT',
           "a response that $victim{$id}");
        unlike($r->{body}, qr/response to/, '... is nobody\'s');
        is(told(order($n, $id)), told($r), '... nor later');
    }

    is(scalar(() = substr($n->log, $from) =~ /\[alert\].*zone "z": the seal of a response was broken in the state file "\S+"/g),
       3, '... one alert for each');

    $n->{allow} = qr/\[alert\].*the seal of a response was broken/;
    $n->stop;
}


# --- records that are marked by a digest key ---------------------------------------

# All of a record that decides, whether it has a response or not.

{
    my $path = "$tmp/marked.db";
    my $n = outliving(zone => "idempotency_zone zone=z:16m state=$path;\n",
                      with(file("digest $key\n")));

    my %set = (
        'its status' => 'status = 200',
        'its end' => 'ends = ends + 1000',
        'its time' => 'recorded = recorded + 1000',
        'its window' => 'span = span + 1000',
        'whose claim it was' => 'fence = fence + 1',
        'who asked' => "parts = CAST(x'" . 'ab' x 16 . "' || substr(parts, 17) AS BLOB)",
        'what was asked' => 'fingerprint = ?',
        'its mark' => "parts = CAST(substr(parts, 1, 28) || x'" . '00' x 16 . "' AS BLOB)",
        'the mark of its response' => "response = CAST(substr(response, 1, length(response) - 17) "
                                      . "|| x'" . '00' x 16 . "02' AS BLOB)",
        'a response without one' => "response = CAST(substr(response, 1, length(response) - 17) "
                                    . "|| x'00' AS BLOB)",
        'a byte of its response' => "response = CAST(x'0101' || substr(response, 3) AS BLOB)",
        'the response of another' => 'response = ?',
        'all of another' => 'token = ?',
        'that it is in doubt' => 'outcome = 3, response = NULL',
    );

    my @what = sort keys %set;
    my %first = map { $_ => order($n, s/ /-/gr) } 'whole', 'other', @what;
    my %token = map { $_ => $first{$_}->header('X-Token') } keys %first;

    # a response has to go for want of room, and has no other mark then
    my $trimmed = order($n, 'trimmed');

    $n->down('QUIT');

    for (@what) {
        my $other = sqlite($path, 'SELECT hex(fingerprint), hex(response) FROM records '
                                  . "WHERE token = x'$token{other}'");
        my ($fingerprint, $response) = split /\|/, $other;
        my $set = $set{$_} =~ s/fingerprint = \?/fingerprint = x'$fingerprint'/r
                           =~ s/response = \?/response = x'$response'/r;

        if ($set =~ /^token/) {
            sqlite($path, "DELETE FROM records WHERE token = x'$token{$_}'; "
                          . 'INSERT INTO records (token, fingerprint, parts, instance, fence, '
                          . 'recorded, ends, span, sum, outcome, status, replays, response) '
                          . "SELECT x'$token{$_}', fingerprint, parts, instance, fence, "
                          . 'recorded, ends, span, sum, outcome, status, replays, response '
                          . "FROM records WHERE token = x'$token{other}'");
        } else {
            sqlite($path, "UPDATE records SET $set WHERE token = x'$token{$_}'");
        }

        resum($path, $token{$_});
    }

    sqlite($path, "UPDATE records SET outcome = 2, response = NULL WHERE token = x'"
                  . $trimmed->header('X-Token') . "'");
    resum($path, $trimmed->header('X-Token'));

    $n->up;

    same_replay($first{whole}, order($n, 'whole'), 'a record that is marked');
    is(told(order($n, 'trimmed')), '409 NOT_KEPT', '... or has lost its response');
    unlike($n->log, qr/\[alert\]/, '... and nothing is said');

    for (@what) {
        my $from = length $n->log;
        my $r = order($n, s/ /-/gr);

        is(told($r), /in doubt/ ? '503 UNAVAILABLE'
                     : /^wh(?:o asked|at)|all of/ ? '409 CONFLICT' : '409 NOT_KEPT',
           "somebody changes $_");
        unlike($r->{body}, qr/response to/, '... which nobody gets');
        like(substr($n->log, $from), /in doubt/
                 ? qr/\[alert\].*a record in the state file "\S+" is not as it was written/
                 : qr/\[alert\].*the seal of a response was broken in the state file/,
             '... and the log says so');
        is(executions('s-' . s/ /-/gr), 1, '... nor is it executed again');
    }

    $n->{allow} = qr/\[alert\].*(?:the seal of a response was broken|is not as it was written)/;
    $n->stop;
}


}


# --- a Redis ----------------------------------------------------------------------

if (!Redis->programs) {
    diag('no Redis');
    done_testing();
    exit;
}

{
    my $redis = Redis->new;

    my $over = sub {
        my ($secret, $prefix) = @_;

        return (server => $server, zone => 0, http => join "\n",
                defined $secret ? 'idempotency_secret ' . file($secret) . ';' : (),
                'idempotency_redis r { timeout 20s; connect_timeout 20s; server unix:' . $redis->path . '; '
                . "prefix $prefix; }",
                'idempotency_zone zone=z:16m redis=r;');
    };

    # all that is there behind a prefix, names and values

    my $all = sub {
        my ($prefix) = @_;

        return map { my $name = $_; $name => $redis->command('GET', $name) }
               @{$redis->command('KEYS', "$prefix*")};
    };

    # once an outcome is there

    my $recorded = sub {
        my ($prefix, $n) = @_;

        return until_true {
            my %all = $all->($prefix);

            (grep { /^..[DNU]/s } values %all) == $n && \%all;
        };
    };

    my %has;

    for my $secret (undef, "digest $key\nseal $third\n") {
        my $name = defined $secret ? 'keyed' : 'open';
        my $n = nginx($over->($secret, "$name:"));

        my $r = order($n, 'redis', type => 'text/x');
        my $all = $recorded->("$name:", 1);

        $has{$name} = { bytes => join("\n", %$all), all => $all, n => $n, r => $r,
                        token => pack('H*', $r->header('X-Token')),
                        digest => pack('H*', $r->header('X-Digest')) };
    }

    my %tried = (
        'the token of a key' => encode_base64($has{open}{token}, '') =~ tr{+/=}{-_}dr,
        'the hint of a body' => substr($has{open}{digest}, 0, 4),
        'a response' => 'response to redis',
    );

    for (sort keys %tried) {
        ok(index($has{open}{bytes}, $tried{$_}) >= 0, "without keys, a Redis has $_");
        ok(index($has{keyed}{bytes}, $tried{$_}) < 0, '... with them, it has not');
    }

    my ($first, $n) = @{$has{keyed}}{qw(r n)};
    my @o = ('redis', type => 'text/x');

    # others

    my $same = nginx($over->("digest $key\nseal $other $third\n", 'keyed:'));
    same_replay($first, order($same, @o), 'another nginx with the keys');

    my $unsealed = nginx($over->("digest $key\n", 'keyed:'));
    is(told(order($unsealed, @o)), '409 NOT_KEPT', '... without that which seals');

    for my $secret ("digest $other\nseal $third\n", "seal $third\n", undef) {
        my $n = nginx($over->($secret, 'keyed:'), allow => qr/tells of another digest key/);

        is(told(order($n, @o)), '503 UNAVAILABLE', '... with another digest key, or none');
        like($n->log, qr/tells of another digest key than that of "idempotency_secret"/,
             '... which the log says');
        unlike($n->log, qr/to agree to it/, '... nobody can agree to that');
        $n->stop;
    }

    is(executions('s-redis'), 2, 'executed once, and once without keys');

    # who can write: an answer in another's place

    my @r = map { $n->post('/x?id=thief&h=X-Answer:%20anybody', key => "thief-$_", body => 'b') } 1, 2;
    my @names = map { 'keyed:z:' . (encode_base64(pack('H*', $_->header('X-Token')), '')
                                    =~ tr{+/=}{-_}dr) } @r;

    $recorded->('keyed:', 3);
    $redis->command('SET', $names[0], $redis->command('GET', $names[1]));

    $same->{allow} = qr/\[alert\].*the seal of a response was broken/;

    my $got = $same->post('/x?id=thief&h=X-Answer:%20anybody', key => 'thief-1', body => 'b');

    is(told($got), '409 NOT_KEPT', "another's answer in its place");
    is($got->header('X-Answer'), undef, '... is nobody\'s') or diag($got->{raw});
    is(scalar(() = $same->log =~ /\[alert\].*the seal of a response was broken in the redis "r"/g),
       1, '... one alert');

    # a large one, which is sealed and opened where the events are

    my $large = $n->post('/x?id=large&size=200000', key => 'large', body => 'b');

    $recorded->('keyed:', 4);
    same_replay($large, $same->post('/x?id=large&size=200000', key => 'large', body => 'b'),
                'a large one');

    $_->stop for $n, $same, $unsealed, $has{open}{n};
}

done_testing();
