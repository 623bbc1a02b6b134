#!/usr/bin/perl

# docs/operation.md, "The file": where it may be, what a start does with
# what it finds there, and what nginx -t leaves alone. docs/directives.md: the
# parameters that go with it.

use lib 't/lib';
use Digest::SHA ();
use Fcntl qw(SEEK_SET);
use File::Temp ();
use List::Util qw(uniq);
use POSIX ();

use Idempotency;
use Restart;
use Rows;
use Stress;


my $server = <<'EOC';
    idempotency zone=z;
    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /local { idempotency_unavailable local; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /off/ { idempotency off; proxy_pass http://$TEST_NGINX_BACKEND; }
    location = /pid { idempotency off; return 200 $pid; }
EOC

sub tested { return config_test(zone => shift, server => $server, @_) }


# One line stops nginx, and says what, at which directive.

sub wrong {
    my ($parameters, $why) = @_;

    my ($ok, $said, $conf) = tested("idempotency_zone zone=z:16m $parameters;\n");

    my @said = $said =~ /\[emerg\] (.*)/g;
    my ($line) = ($said[0] // '') =~ m{ in ROOT/nginx\.conf:(\d+)$};

    ok(!$ok && @said == 1 && index($said[0], $why) == 0,
       length $parameters ? "refused: $parameters" : 'refused')
        or diag($said);
    like((split /\n/, $conf)[($line // 1) - 1], qr/^idempotency_zone /,
         '... where it stands') or diag($said);
}


if (no_state() =~ /not supported/) {
    wrong('state=z.db', '"state" is not supported by this build of the module');
    done_testing();
    exit;
}


# --- its parameters -----------------------------------------------------------

wrong(@$_) for
    [ 'state=', 'invalid parameter "state="' ],
    [ 'state=a.db state=b.db', 'invalid parameter "state=b.db"' ],
    [ 'state=a.db sync=', 'invalid parameter "sync="' ],
    [ 'state=a.db sync=fast', 'invalid parameter "sync=fast"' ],
    [ 'state=a.db sync=Strict', 'invalid parameter "sync=Strict"' ],
    [ 'state=a.db sync=off', 'invalid parameter "sync=off"' ],
    [ 'state=a.db sync=strict sync=strict', 'invalid parameter "sync=strict"' ],
    [ 'state=a.db max_size=', 'invalid parameter "max_size="' ],
    [ 'state=a.db max_size=0', 'invalid parameter "max_size=0"' ],
    [ 'state=a.db max_size=-1', 'invalid parameter "max_size=-1"' ],
    [ 'state=a.db max_size=1x', 'invalid parameter "max_size=1x"' ],
    [ 'state=a.db max_size=65535', 'invalid parameter "max_size=65535", it must be a size of 64k or more' ],
    [ 'state=a.db max_size=1g max_size=1g', 'invalid parameter "max_size=1g"' ],
    [ 'state=a.db threads=default', 'invalid parameter "threads=default"' ],
    [ 'state=a.db other=1', 'invalid parameter "other=1"' ],
    map([ $_, '"idempotency_zone" directive takes "sync" and "max_size" with a "state" parameter only' ],
        'sync=strict', 'max_size=1g');

# one file, however it is written

wrong("state=$_->[0];\nidempotency_zone zone=y:16m state=$_->[1]",
      'the state "') for
    [ 'a.db', 'a.db' ], [ 'a.db', '$TEST_NGINX_ROOT/a.db' ];

for ('state=a.db', 'state=a.db sync=strict', 'state=a.db sync=batched',
     'state=a.db sync=batched max_size=64k', 'evict=responses state=a.db',
     'evict=off sync=strict state=$TEST_NGINX_ROOT/a.db')
{
    my ($ok, $said) = tested("idempotency_zone zone=z:16m $_;\n");

    ok($ok && $said !~ /\[(?:warn|error)\]/, "taken: $_") or diag($said);
}


# --- the file -----------------------------------------------------------------

my $tmp = File::Temp->newdir('state-XXXXXX', TMPDIR => 1);
my $nobody = $> == 0 && getpwnam 'nobody';
my $group = $nobody && getgrgid((getpwnam 'nobody')[3]);
my $dir = "$tmp/dir";
my $file = "$dir/z.db";

chmod 0755, $tmp;


sub spew {
    my ($name, $bytes, $at) = @_;

    open my $f, $at ? '+<:raw' : '>:raw', $name or die "$name: $!";
    seek $f, $at // 0, SEEK_SET;
    print $f $bytes;
    close $f or die "$name: $!";

    chown $nobody, -1, $name if $nobody;
}


# Names, owners, modes and bytes: what may not change.

sub state {
    return join "\n", map {
        my @st = lstat;
        "$_ " . join ' ', @st[2, 3, 4, 7], -f _ ? Digest::SHA::sha1_hex(slurp($_)) : ();
    } grep { -e || -l } sort glob "$dir $dir/*";
}


sub empty_dir {
    system 'rm', '-rf', $dir;
    mkdir $dir, 0700 or die "$dir: $!";
    chown $nobody, -1, $dir if $nobody;
}


# nginx's workers are somebody else, where they can be.

my %as = (zone => 0, server => $server, $nobody ? (user => "nobody $group") : (),
          http => "idempotency_zone zone=z:16m state=$file;\n");

sub mode { return sprintf '%04o', (stat shift)[2] & 07777 }

my $keys = 0;

sub order {
    my ($n, $id) = @_;

    return told($n->post("/x?id=$id", key => $id, body => 'b'));
}


sub said {
    my ($n, $from) = @_;

    return map { s/ in \S+:\d+$//r =~ s/\Q$file\E/FILE/r }
           substr($n->log, $from) =~ /\[\w+\] \d+#\d+: (the (?:state|clock) .*)/g;
}


# A store with one token, of an nginx that has ended.

sub made {
    empty_dir();

    my $n = outliving(%as);
    order($n, 'made' . ++$keys);
    $n->down('QUIT');
    $n->stop;
}


{
    empty_dir();

    my $before = state();

    my ($ok, $said) = config_test(%as);
    ok($ok, 'nginx -t before the first start') or diag($said);
    is(state(), $before, '... makes nothing');

    my $n = outliving(%as);

    is_deeply([ said($n, 0) ], [ 'the state file "FILE" was made, as there was none: no token is known' ],
              'a start makes the file, and says so');
    like($n->log, qr/\[warn\] .* the state file "\Q$file\E" was made/, '... as a warning: it may have been lost');
    is(mode($file), '0600', '... with mode 0600');
    is((stat $file)[4], $nobody || $>, "... the workers' own");

    is(order($n, 'first'), '200 NEW', 'a first execution');

    my @beside = grep { $_ ne $file } glob "$dir/*";
    is_deeply([ map { mode($_) } @beside ], [ ('0600') x @beside ], '... what is beside the file has its mode');

    $n->down('QUIT');

    my $from = length $n->log;

    $n->up;
    is_deeply([ said($n, $from) ], [ 'the state file "FILE" was found' ],
              'another start finds it, and says so');
    is(order($n, 'first'), '200 REPLAYED', '... and what it knows');

    # beside a living one

    ($ok, $said) = config_test(%as);
    ok($ok, 'nginx -t beside it') or diag($said);
    is(order($n, 'first'), '200 REPLAYED', '... harms nobody');
    is(order($n, 'second'), '200 NEW', '... nor what is new');

    $from = length $n->log;
    is($n->reload, 1, 'a reload');
    is_deeply([ said($n, $from) ], [], '... goes on with the same file');
    is(order($n, 'second'), '200 REPLAYED', '... and with what it knows');

    $from = length $n->log;
    is($n->reload(http => "idempotency_zone zone=z:16m state=$dir/y.db;\n"), 0,
       'a reload with another one is refused');
    like(substr($n->log, $from),
         qr/\[emerg\].*"z" uses the state "\S+y\.db" while previously it used "\S+z\.db"/,
         '... and says why');

    # a zone that comes with a reload has its file made by it

    is($n->reload(http => $as{http}
                          . "idempotency_zone zone=y:16m state=$dir/y.db;\n"), 1,
       'a reload with one more');
    is(mode("$dir/y.db"), '0600', '... makes it');
    is(order($n, 'second'), '200 REPLAYED', '... beside the first');

    # by another name it is the same store

    is($n->reload(http => $as{http} =~ s/zone=z/zone=renamed/r, server => $server =~ s/zone=z/zone=renamed/gr), 1,
       'a reload by which the zone has another name');
    is(order($n, 'second'), '200 REPLAYED', '... goes on with what it knows');
    is(order($n, 'third'), '200 NEW', '... and with what is new');
    is($n->reload(http => $as{http}, server => $server), 1, 'a reload back');
    is(order($n, 'third'), '200 REPLAYED', '... which knows that');

    # what can't be had does not stop nginx

    $from = length $n->log;
    is($n->reload(http => $as{http}
                          . "idempotency_zone zone=x:16m state=$tmp/none/x.db;\n"), 0,
       'a reload with one that can not be is refused');
    like(substr($n->log, $from), qr/\[emerg\].*none\/x\.db" .* must be able to write to its directory /,
         '... and says what to do');
    is(order($n, 'second'), '200 REPLAYED', '... and nginx goes on');

    $n->{allow} = qr/\[emerg\].*"z" uses the state|none\/x\.db/;
    $n->stop;
}


# --- what a start does not take ------------------------------------------------

# nginx -t says it, and fails. nginx starts without it, says it once, and serves
# what needs no store; the file is left as it is. What is told, with $other: that
# somebody may agree to it. Where it is not merely out of reach ($away), memory alone
# guards nothing.

sub refused {
    my ($name, $why, %o) = @_;

    my $other = delete $o{other};
    my $away = delete $o{away};

    # an nginx that has the file goes on syncing
    my $state = delete $o{in_use} ? sub { join "\n", grep { !/-witness / } split /\n/, state() } : \&state;
    my $before = $state->();

    my ($ok, $said) = config_test(%as, %o);
    my @said = $said =~ /\[emerg\] (?:\d+#\d+: )?(.*)/g;

    ok(!$ok && @said == 1 && $said[0] =~ $why && $said[0] =~ m{ in \S+/nginx\.conf:\d+$}, "$name: nginx -t")
        or diag($said);
    is($state->(), $before, '... changes nothing');

    my $n = outliving(%as, %o, allow => qr/the state file/);

    @said = $n->log =~ m{^\d{4}/.*\[(?:emerg|alert|crit)\] (?:\d+#\d+: )?(the state.*)}mg;

    ok(@said == 1 && $said[0] =~ $why, '... a start') or diag(@said);
    like($said[0] // '', $other ? qr/; to agree to it as it is, PUT \{"store":"accept"\} to \/zones\/z /
                                : qr/; zone "z" is without it until it can be used/, '... with what is to be done');
    is(order($n, 'refused'), '503 UNAVAILABLE', '... what needs it is refused');
    is(told($n->post('/local', key => 'local', body => 'b')), '503 UNAVAILABLE', '... also under local') if !$away;
    is(told($n->post('/off/x')), '200 -', '... and what does not is served');

    $n->stop;
    is(join("\n", grep { !/-owners / } split /\n/, $state->()),
       join("\n", grep { !/-owners / } split /\n/, $before), '... and nothing has changed');
}

made();

my $whole = slurp($file);

for my $case (
    [ 'no database', 'hello', qr/"\Q$file\E" is a file of another program, or damaged;/ ],
    [ 'zeros', "\0" x 8192, qr/"\Q$file\E" is a file of another program, or damaged;/ ],
    [ 'cut off', substr($whole, 0, 8192),
      qr/"\Q$file\E" is damaged: .*; restore/ ],
    [ "another program's", $whole =~ s/\A.{68}\K.{4}/abcd/sr,
      qr/"\Q$file\E" is a file of another program/ ],
    [ 'of the next version', $whole =~ s/\A.{60}\K.{4}/\x00\x00\x00\x09/sr,
      qr/"\Q$file\E" is of version 9, and this module knows version 2; load the/ ])
{
    my ($name, $bytes, $why) = @$case;

    spew($file, $bytes);
    refused($name, $why);
}

spew($file, '');
refused('empty', qr/"\Q$file\E" is empty, and has left \Q$file\E-witness;/, other => 1);
unlink $file;
spew("$file-wal", 'something');
chmod 0600, "$file-wal";
refused('gone, but for its log', qr/"\Q$file\E" is gone, and has left \Q$file\E-wal;/, other => 1);
unlink "$file-wal";
refused('gone, but for its witness', qr/"\Q$file\E" is gone, and has left \Q$file\E-witness;/, other => 1);

mkdir $file;
refused('a directory', qr/\Q$file\E is no regular file/);
rmdir $file;

spew("$dir/other", $whole);
symlink 'other', $file;
refused('a link', qr/\Q$file\E is no regular file/);
unlink $file;

link "$dir/other", $file;
refused('two names', qr/\Q$file\E has 2 names/);
unlink $file, "$dir/other";

refused('no directory', qr/none\/z\.db" can't be used: .* must be able to write to its directory /,
        http => "idempotency_zone zone=z:16m state=$dir/none/z.db;\n", away => 1);

refused('a long name', qr/" has too long a name: 500 bytes are possible/,
        http => 'idempotency_zone zone=z:16m state=' . '/x' x 251 . ";\n", away => 1);

spew($file, $whole);

SKIP: {
    skip 'not root, whose workers are somebody else', 7 if !$nobody;

    chown 0, -1, $file;
    refused('of another user',
            qr/ belongs to user 0, and the workers run as $nobody/, away => 1);
    chown $nobody, -1, $file;

    chown 0, -1, $dir;
    chmod 0755, $dir;
    refused("a directory that isn't theirs",
            qr/ must be able to write to its directory /, away => 1);
    chown $nobody, -1, $dir;
    chmod 0700, $dir;

    my $n = outliving(%as);
    is(order($n, "made$keys"), '200 REPLAYED', '... nothing was lost by all that');
    $n->stop;
}


# what is mended meanwhile is found without a reload, by each worker; one that a
# reload brings has it as well

for my $case (
    [ 'rights', sub { chmod 0400, $file }, sub { chmod 0600, $file } ],
    [ 'away', sub { rename $dir, "$dir-away" }, sub { rename "$dir-away", $dir } ],
    [ 'another', sub { rename $file, "$file-away"; spew($file, 'hello') }, sub { rename "$file-away", $file } ])
{
    my ($name, $breaks, $mends) = @$case;

    made();
    my $known = "made$keys";
    my $n = outliving(%as, workers => 2);
    $n->down('QUIT');

    $breaks->();
    $n->{allow} = qr/the state file/;
    $n->up;
    is(order($n, $known), '503 UNAVAILABLE', "$name: what could not be used at a start");
    is(scalar(() = $n->log =~ /\[alert\].*; zone "z" is without it/g), 1, '... is said');

    my $from = length $n->log;
    $mends->();

    for my $pid ($n->workers) {
        my $c = connection_to($n, $pid);

        ok((until_true {
            told(ask($c, 'POST', '/x', key => 'mended' . ++$keys, body => 'b')->response) eq '200 NEW'
        }), '... it is mended: each worker uses it');
    }

    is(order($n, $known), '200 REPLAYED', '... with what is there');
    like(substr($n->log, $from), qr/\[notice\].*the state file "\Q$file\E" was found/, '... and says so');
    is($n->reload, 1, '... a reload');
    is(order($n, $known), '200 REPLAYED', '... goes on with it');
    $n->stop;
}


# --- and what it mends ----------------------------------------------------------

{
    made();
    chmod 0644, $file;

    my ($ok, $said) = config_test(%as);
    ok($ok, 'open to others: nginx -t') or diag($said);
    is(mode($file), '0644', '... and leaves it');

    my $n = outliving(%as);
    is_deeply([ said($n, 0) ],
              [ 'the state file "FILE" was open to others; it has the mode 0600 now',
                'the state file "FILE" was found' ],
              'a start says so');
    is(mode($file), '0600', '... and closes it');
    is(order($n, "made$keys"), '200 REPLAYED', '... and has what it knows');

    # removed while it is used, but for its log: or else a new one

    is(order($n, 'log' . ++$keys), '200 NEW', 'while it is used');

    # ... and synced: what its witness is told later would make it anew

    my $number = sqlite($file, 'SELECT number FROM meta');

    until_true { grep { $_ == $number } map { unpack "x${_}x24Q<", slurp("$file-witness") } 0, 512 };
    unlink $file;

    refused('... it is removed', qr/"\Q$file\E" is gone, and has left \Q$file\E-w/, other => 1, in_use => 1);

    for ('all of it is', 'it is made anew') {
        unlink "$file-wal", "$file-shm", "$file-witness";

        my $other = outliving(%as, allow => qr/the state file/);

        like($other->log, qr/\[alert\] .*"\Q$file\E" was replaced while an nginx uses the one that was there; end/,
             "... $_: a second nginx says why it can't");
        is(order($other, "made$keys"), '503 UNAVAILABLE', '... use it');
        $other->stop;
    }

    $n->{allow} = qr/the state file/;
    $n->down('QUIT');
    $n->stop;

    unlink "$file-witness";

    $n = nginx(%as);
    is(order($n, "made$keys"), '200 NEW', '... but when that has ended');
    $n->stop;
}


# --- its log ---------------------------------------------------------------------

# docs/operation.md: the log begins anew at 64 MB; a log's first bytes say which it is.

{
    empty_dir();

    my $n = outliving(%as);
    my $which = sub { substr slurp("$file-wal"), 16, 8 };

    is(order($n, 'log-first'), '200 NEW', 'a log');

    my $first = $which->();

    is(join(' ', uniq(map { told($n->post('/x?size=1000000', key => "log$_", body => 'b')) } 1 .. 70)),
       '200 NEW', '... of more than 64 MB');
    ok((until_true { $which->() ne $first }), '... begins anew');
    is(order($n, 'log-first'), '200 REPLAYED', '... and nothing is lost');
    is(told($n->post('/x?size=1000000', key => 'log70', body => 'b')), '200 REPLAYED', '... nor of the last');
    $n->stop;
}


# --- who may not -----------------------------------------------------------------

SKIP: {
    skip 'not root, who can be somebody else', 4 if !$nobody;

    made();

    my $n = outliving(%as);
    # but what nginx's own workers make when they open it
    my $files = sub { join ' ', grep { !/-(?:wal|shm)$/ } sort glob "$dir/*" };
    my $before = $files->();

    pipe my $reader, my $writer or die "pipe: $!";

    my $pid = child(sub {
        POSIX::setgid(12345);
        POSIX::setuid(12345);
        open STDOUT, '>&', $writer;
        open STDERR, '>&', $writer;
        exec Idempotency::command($n), '-t' or POSIX::_exit(127);
    });

    close $writer;

    my $said = do { local $/; <$reader> };

    waitpid $pid, 0;
    isnt($?, 0, 'nginx -t of a stranger fails') or diag($said);
    is($files->(), $before, '... and leaves all as it is');
    is(order($n, "made$keys"), '200 REPLAYED', '... nginx goes on');
    is(order($n, 'new' . ++$keys), '200 NEW', '... with what is new');
    $n->stop;
}

done_testing();
