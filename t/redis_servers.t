#!/usr/bin/perl

# Connections to real servers, each kind that is here: what they say by themselves,
# TLS, users, unix sockets, replicas, sentinels, clusters, and what becomes of calls
# when they die, move, or are told to forget.
#
# Environment: TEST_REDIS_PROGRAM (such as valkey-server), TEST_REDIS_WHAT (a
# pattern): only that

use FindBin;
use lib "$FindBin::Bin/lib";
use File::Temp ();
use Idempotency;
use Redis;
use RedisCaller;

plan(skip_all => 'no tree of headers, as util/build makes it') unless Redis->caller;
plan(skip_all => 'no redis-server, nor a valkey-server') unless Redis->programs;

my $pki = File::Temp->newdir(TMPDIR => 1);
chmod 0755, $pki;

my $set = 'return redis.call("set",KEYS[1],ARGV[1])';
my $get = 'return redis.call("get",KEYS[1])';

# A machine that is busy elsewhere is no error of a server.

my $patient = 'timeout 20s; connect_timeout 20s;';

certificates();
servers($_) for $ENV{TEST_REDIS_PROGRAM} // Redis->programs;

done_testing();


sub servers {
    my ($program) = @_;

    my %p = (program => $program);

    for (
        [ 'by itself' => \&alone ],
        [ 'users' => \&users ],
        [ 'TLS' => \&tls ],
        [ 'replicas' => \&replicas ],
        [ 'disk' => \&disk ],
        [ 'told what is published' => \&told_of ],
        [ 'it comes and goes' => \&comes_and_goes ],
        [ 'sentinels' => \&sentinels ],
        [ 'a sentinel by TLS' => \&sentinel_tls ],
        [ 'a cluster' => \&cluster ],
        [ 'a cluster of names' => \&names ],
    ) {
        my ($what, $test) = @$_;
        next if $what !~ ($ENV{TEST_REDIS_WHAT} // qr/./);


        subtest "$program: $what" => sub { $test->(%p); caller_nginx()->stop; };
    }
}


# --- one server -----------------------------------------------------------------

sub alone {
    my $r = Redis->new(@_, args => ['--appendonly', 'yes']);

    with({ r => 'server 127.0.0.1:' . $r->port . "; $patient",
           n => 'server localhost:' . $r->port . "; $patient",
           u => 'server unix:' . $r->path . "; $patient database 3;" });

    is_call(call('k', script => $set, arg => ["a\r\nb\xff"]), 'OK', 0, '"OK"', 'bytes there');
    is_call(call('k', script => $get), 'OK', 0, "reply=\"a\r\nb\xff\"", '... and back');
    is_call(call('k', script => $get, at => 'n'), 'OK', 0, 'reply="a', 'by a name');
    is_call(call('k', script => $get, at => 'u'), 'OK', 0, 'reply=nil', 'by a unix socket, another database');

    is_call(call('k', script => 'return {1, {KEYS[1]}, false, "x", {ok="fine"}}'), 'OK', 0,
            '[:1 ["k"] nil "x" "fine"]', 'values in values');
    is_call(call('k', script => 'return redis.error_reply("OWN error")'), 'FAULT', 1, '-OWN error', 'an error');
    is_call(call('k', script => 'return redis.call("lpush", KEYS[1], 1)'), 'FAULT', 1, '-WRONGTYPE',
            'one of its commands');
    is_call(call('k', script => 'this is no script'), 'FAULT', 1, '-ERR', 'no script');
    is(scalar(() = call('k', script => 'return 7', n => 500) =~ /^error=0 .* reply=:7$/mg), 500,
       '500 at once');

    my $long = call('k', script => 'return string.rep("x", 300000)');
    is(length $long, 300_000 + length qq{error=0 maybe=0 why="" reply=""\n}, '300000 bytes');

    $r->command('SCRIPT', 'FLUSH');
    is(scalar(() = call('k', script => 'return 7', n => 50) =~ /^error=0 .* reply=:7$/mg), 50,
       'it has forgotten the scripts');

    my ($until) = call('k', script => 'return ARGV[1]', until => 1, msec => 5000) =~ /reply="(\d+)"/;
    my $now = $r->command('TIME');
    my $there = $now->[0] + $now->[1] / 1e6;

    ok($until / 1e6 > $there - 10 && $until / 1e6 <= $there + 5, 'a deadline by its clock');

    like(caller_nginx()->log, qr/^(?!.*\[(?:warn|error)\])/s, 'and nothing to complain of');

    # full, and nothing goes
    $r->command('CONFIG', 'SET', 'maxmemory', 1);
    is_call(call('k2', script => $set, arg => ['x']), 'FULL', 0, '-OOM', 'it is full');
    is_call(call('k', script => $get), 'OK', 0, 'reply="a', '... and can be read');
    $r->command('CONFIG', 'SET', 'maxmemory', 0);

    # a script that does not end
    $r->command('CONFIG', 'SET', 'lua-time-limit', 10);
    my $busy = caller_nginx()->start('GET', uri('b', script => 'while true do end', msec => 60000, lane => 0));
    ok(until_true { (eval { $r->command('PING') } // '') =~ /^BUSY/ }, 'it is busy');
    my $waits = caller_nginx()->start('GET', uri('k', script => 'return 8', lane => 1, msec => 60000));
    is($r->command('SCRIPT', 'KILL'), 'OK', '... until that is killed');
    is_call($busy->response->{body}, 'FAULT', 0, 'killed', '... which is told');
    is_call($waits->response->{body}, 'OK', 0, ':8', '... and others go on');

    # it stands still, and what it was asked meanwhile is given up: it reads that
    # afterwards, though the connection was reset, and sees that it is too late
    my $unless_late = 'local now = redis.call("time") if now[1] * 1000000 + now[2] > tonumber(ARGV[1]) then'
                      . ' return "late" end return redis.call("set", KEYS[1], 1)';
    $r->pause;
    is_call(call('late', script => $unless_late, until => 1, msec => 300, lane => $_), 'TIMEOUT', 1,
            'no answer in time', "it stands still, lane $_") for 0, 1;
    $r->resume;
    is_call(call('k', script => $get, msec => 60000), 'OK', 0, 'reply="a', '... and goes on');
    is($r->command('EXISTS', 'late'), 0, '... but not with that');

    # its clock is set forward by an hour
    my $ahead = 'local now = redis.call("time") now = now[1] * 1000 + 3600000'
                . ' return { now * 1000 > tonumber(ARGV[1]) and "L" or "O", string.format("%.0f", now) }';
    is_call(call('k', script => $ahead, until => 1, msec => 20000), 'OK', 0, '["O"', 'a clock that is set forward makes nothing late');
    ($until) = call('k', script => 'return ARGV[1]', until => 1, msec => 5000) =~ /reply="(\d+)"/;
    ok($until / 1e6 > time + 3590, '... it is known from the answer');

    # dead, and back
    $r->kill;
    is_call(call('k', script => $get, msec => 300), 'CONNECT', 0, 'refused', 'it is dead');
    $r->start;
    is_call(call('k', script => $get, msec => 60000), 'OK', 0, 'reply="a', 'it is back, with what it had stored');
    until_true { caller_nginx()->log =~ /is back/ };
    like(caller_nginx()->log, qr/\[error\] .*no connection to 127.*\n(?:.*\n)*.*is back/, '... and the log knows');
}


sub users {
    my $r = Redis->new(@_, args => ['--appendonly', 'yes']);
    my $password = File::Temp->new(TMPDIR => 1);

    print $password "let me in\n";
    close $password;

    my @rights = rights(1, 'idem:');

    is($r->command('ACL', 'SETUSER', 'nginx', 'on', '>let me in', @rights), 'OK', 'a user');

    my $server = 'server 127.0.0.1:' . $r->port . ";";

    with({ r => "$server $patient user nginx; password_file $password;",
           o => "$server user nobody; password_file $password;",
           d => "$server $patient" }, allow => qr/idempotency_redis "[od]"/);

    is_call(call('idem:k', script => $set, arg => [1]), 'OK', 0, '"OK"', '... may do what is needed');
    is_call(call('other', script => $set, arg => [1]), 'DENIED', 0, '-NOPERM', '... and nothing else');
    like(call('idem:k', script => 'return redis.call("flushall")'), qr/^error=(?:4|9) maybe=1 /, '... of what a script may do');
    is_call(call('idem:k', script => $set, at => 'o', msec => 20000), 'DENIED', 0, 'WRONGPASS', 'another is not let in');
    unlike(caller_nginx()->log, qr/let me in/, 'no password in the log');

    my $watch = watching('idem:c', n => 2, msec => 60000);
    until_true { $r->command('PUBSUB', 'NUMSUB', 'idem:c')->[1] };
    $r->command('PUBLISH', 'idem:c', 1);
    is($watch->response->{body}, "told 2\n", '... may be told');

    # and all that a zone does there
    my $n = nginx(zone => 0, http => "idempotency_redis r { $server $patient user nginx; password_file $password; }"
                                     . 'idempotency_zone zone=z:1m redis=r;',
                  server => 'location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }');

    my $id = 'user' . $r->port;
    my @same = map $n->post("/?id=$id", key => 'user', timeout => 30), 1, 2;
    is("$same[0]{status} $same[1]{status}", '200 200', '... is enough for a zone');
    ok($same[1]->replayed, '... which remembers');
    is(executions($id), 1, '... there');
    is($r->command('DBSIZE') > 0, 1, '... as one sees');
    unlike($n->log, qr/NOPERM|\[error\]/, '... without a complaint');
    $n->stop;
    $r->command('ACL', 'LOG', 'RESET');

    # it was let in as somebody who needs no password, until now
    is_call(call('k', script => 'return 1', at => 'd'), 'OK', 0, ':1', 'no password, where none is wanted');
    $r->command('CONFIG', 'SET', 'requirepass', 'let me in');
    $r->command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    is_call(call('k', script => 'return 1', at => 'd', msec => 20000), 'DENIED', 0, 'NOAUTH', '... until one is');

    with("$server $patient password_file $password;");
    is_call(call('k', script => 'return 1'), 'OK', 0, ':1', 'a password alone');
    unlike(caller_nginx()->log, qr/let me in/, '... is not in the log');
}


# What docs/directives.md says that it takes: alone, with all, in a cluster, ...

sub rights {
    my ($n, $prefix) = @_;

    my ($text) = slurp("$FindBin::Bin/../docs/directives.md") =~ /A user of its own needs\n(.*?)\n\n/s;
    my @said = $text =~ /`([~&+][^`]* [^`]*|[+]select)`/g;

    return map { s/PREFIX/$prefix/r } map { split ' ', s/\\//gr } @said[$n == 1 ? 0 : (0, 3)];
}


# --- TLS --------------------------------------------------------------------------

sub certificates {
    my $n = 0;

    my $make = sub {
        my ($name, $ca, $days, $subject, @names) = @_;

        my $ext = "$pki/$name.ext";
        open my $f, '>', $ext or die $!;
        print $f $name =~ /ca$/ ? "basicConstraints=CA:true\n" : 'subjectAltName=' . join(',', @names) . "\n";
        close $f;

        my $ended = "$pki/ended.conf";

        open $f, '>', $ended or die "$ended: $!";
        print $f "[ca]\ndefault_ca=c\n[c]\ndatabase=$pki/index\nnew_certs_dir=$pki\ndefault_md=sha256\n"
                 . "policy=p\nrand_serial=yes\nserial=$pki/serial\nunique_subject=no\n[p]\ncommonName=supplied\n";
        close $f;
        open $f, '>>', "$pki/index" or die "$pki/index: $!";
        close $f;

        my @sign = $ca eq $name ? ('-signkey', "$pki/$name.key")
                                : ('-CA', "$pki/$ca.pem", '-CAkey', "$pki/$ca.key", '-set_serial', ++$n + 100);

        for (["req", '-newkey', 'rsa:2048', '-nodes', '-subj', "/CN=$subject", '-keyout', "$pki/$name.key",
              '-out', "$pki/$name.csr"],
             $days > 0 ? ['x509', '-req', '-in', "$pki/$name.csr", @sign, '-days', $days, '-extfile', $ext,
                          '-out', "$pki/$name.pem"]
                       # x509 of OpenSSL 3.5 signs nothing that is over
                       : ['ca', '-batch', '-notext', '-config', $ended, '-in', "$pki/$name.csr",
                          '-cert', "$pki/$ca.pem", '-keyfile', "$pki/$ca.key", '-extfile', $ext,
                          '-startdate', '20200101000000Z', '-enddate', '20200102000000Z',
                          '-out', "$pki/$name.pem"])
        {
            system('sh', '-c', 'exec openssl "$@" >/dev/null 2>&1', 'sh', @$_) == 0 or die "openssl @$_";
        }

        chmod 0644, "$pki/$name.key";
    };

    $make->('ca', 'ca', 10, 'the CA');
    $make->('otherca', 'otherca', 10, 'another CA');
    $make->('server', 'ca', 10, 'server', 'DNS:redis.example', 'DNS:localhost', 'IP:127.0.0.1');
    $make->('named', 'ca', 10, 'server', 'DNS:redis.example');
    $make->('expired', 'ca', -1, 'server', 'DNS:localhost', 'IP:127.0.0.1');
    $make->('client', 'ca', 10, 'client', 'DNS:client');
}


sub of { return [map "$pki/$_", "$_[0].pem", "$_[0].key", 'ca.pem'] }


sub tls_server {
    my ($cert, %o) = @_;

    return Redis->new(%o, tls => of($cert), args => ['--appendonly', 'yes', @{$o{args} // []}]);
}


sub tls {
    my %p = @_;

    my $r = tls_server('server', %p);
    my $named = tls_server('named', %p);
    my $expired = tls_server('expired', %p);
    my $mutual = tls_server('server', %p, args => ['--tls-auth-clients', 'yes']);

    my $tls = "$patient ssl on; ssl_trusted_certificate $pki/ca.pem;";

    with({
        r => "server 127.0.0.1:$r->{tls}; $tls",
        localhost => "server localhost:$r->{tls}; $tls",
        name => "server 127.0.0.1:$named->{tls}; $tls ssl_name redis.example;",
        wrong => "server 127.0.0.1:$named->{tls}; $tls",
        wrongname => "server 127.0.0.1:$named->{tls}; $tls ssl_name other.example;",
        off => "server 127.0.0.1:$expired->{tls}; $patient ssl on; ssl_verify off;",
        expired => "server 127.0.0.1:$expired->{tls}; $tls",
        other => "server 127.0.0.1:$r->{tls}; $patient ssl on; ssl_trusted_certificate $pki/otherca.pem;",
        system => "server 127.0.0.1:$r->{tls}; $patient ssl on;",
        mutual => "server 127.0.0.1:$mutual->{tls}; $tls ssl_certificate $pki/client.pem;"
                  . " ssl_certificate_key $pki/client.key;",
        nobody => "server 127.0.0.1:$mutual->{tls}; $tls",
        toplain => 'server 127.0.0.1:' . $r->port . "; $tls connect_timeout 300ms;" =~ s/connect_timeout 20s;//r,
        plain => "server 127.0.0.1:$r->{tls}; timeout 20s; connect_timeout 300ms;",
    }, allow => qr/idempotency_redis|SSL_do_handshake/);

    my %call = (script => 'return 5', msec => 20000);

    is_call(call('k', %call), 'OK', 0, ':5', 'an address that the certificate names');
    is_call(call('k', %call, at => 'localhost'), 'OK', 0, ':5', 'a name that it names');
    is_call(call('k', %call, at => 'name'), 'OK', 0, ':5', 'ssl_name');
    is_call(call('k', %call, at => 'off'), 'OK', 0, ':5', 'ssl_verify off');
    is_call(call('k', %call, at => 'mutual'), 'OK', 0, ':5', 'our certificate');

    is_call(call('k', %call, at => 'wrong'), 'DENIED', 0, 'certificate is not one of "127.0.0.1"',
            'an address that it does not name');
    is_call(call('k', %call, at => 'wrongname'), 'DENIED', 0, 'certificate is not one of "other.example"',
            'a name that it does not name');
    is_call(call('k', %call, at => 'expired'), 'DENIED', 0, 'not accepted: certificate has expired', 'it has expired');
    is_call(call('k', %call, at => 'other'), 'DENIED', 0, 'not accepted:', 'nobody that we trust signed it');
    is_call(call('k', %call, at => 'system'), 'DENIED', 0, 'not accepted:', '... nor anybody that the system trusts');
    is_call(call('k', %call, msec => 1000, at => 'nobody'), 'CONNECT', 0, '', 'it wants a certificate of ours');
    is_call(call('k', %call, msec => 1000, at => 'toplain'), 'CONNECT', 0, '', 'there is no TLS');
    is_call(call('k', %call, msec => 1000, at => 'plain'), 'CONNECT', 0, '', 'there is nothing but TLS');

    for my $block (qw(wrong expired other toplain plain)) {
        is(scalar(() = caller_nginx()->log =~ /idempotency_redis "$block": no connection/g), 1,
           "one line of the log: $block");
    }

    my $watch = watching('c', n => 2, msec => 60000);
    until_true { $r->command('PUBSUB', 'NUMSUB', 'c')->[1] };
    $r->command('PUBLISH', 'c', 1);
    is($watch->response->{body}, "told 2\n", 'told by TLS');

    my $long = call('k', script => 'return string.rep("x", 500000)', msec => 20000);
    is(length $long, 500_000 + length qq{error=0 maybe=0 why="" reply=""\n}, '500000 bytes');

    my $there = call('k', script => 'return string.len(ARGV[1])', arg => ['x' x 4000], n => 200, msec => 20000);
    is(scalar(() = $there =~ /^error=0 .* reply=:4000$/mg), 200, '... and there');
}


# --- what is to be durable ----------------------------------------------------------

sub replicas {
    my %p = @_;

    my $r = Redis->new(%p, args => ['--appendonly', 'yes', '--repl-ping-replica-period', 1]);
    my $replica = Redis->new(%p, args => ['--replicaof', '127.0.0.1', $r->port]);

    until_true { ($r->info('slave0') // '') =~ /state=online/ } or die 'no replica';

    with({ r => 'server 127.0.0.1:' . $r->port . "; $patient replicas 1;",
           two => 'server 127.0.0.1:' . $r->port . "; $patient replicas 2;",
           replica => 'server 127.0.0.1:' . $replica->port . '; connect_timeout 20s; timeout 500ms;' },
         allow => qr/idempotency_redis/);

    my %durable = (durable => 1, script => $set, arg => [1]);

    is_call(call('k', %durable, msec => 20000), 'OK', 0, '"OK"', 'a replica has it');
    is(scalar(() = call('k', %durable, msec => 20000, n => 100) =~ /^error=0/mg), 100, '... and 100');
    my $two;
    until_true { ($two = call('k', %durable, msec => 400, at => 'two')) !~ /no answer in time/ };
    is_call($two, 'UNACKED', 1, 'reply="OK"', 'there is no second one');
    is_call(call('k', script => $get, msec => 20000, at => 'two'), 'OK', 0, '"1"', '... which others need not wait for');
    is_call(call('k', script => $get, at => 'replica', msec => 20000), 'AWAY', 0, 'no master, but "slave"',
            'a replica is no master');

    # it is cut off: a link that stalls, as one that is closed would be made anew
    $replica->pause;
    my $said = '';
    until_true { ($said = call('k', %durable, msec => 400, arg => ['x' x 4000])) =~ /^error=7/ };
    is_call($said, 'UNACKED', 1, 'reply="OK"', 'it stands still');
    $replica->resume;
    ok(until_true { call('k', %durable, msec => 5000) =~ /^error=0/ }, '... and goes on');
}


sub disk {
    my %p = @_;

    my $r = Redis->new(%p, args => ['--appendonly', 'yes', '--appendfsync', 'everysec']);
    my $no = Redis->new(%p);

    with({ r => 'server 127.0.0.1:' . $r->port . "; $patient fsync on;",
           no => 'server 127.0.0.1:' . $no->port . "; $patient fsync on;" });

    my %durable = (durable => 1, script => $set, arg => [1], msec => 20000);

    if (($r->command('COMMAND', 'INFO', 'WAITAOF') // [])->[0]) {
        is_call(call('k', %durable, n => 3), 'OK', 0, '"OK"', 'it is on disk');
        is_call(call('k', %durable, at => 'no'), 'UNACKED', 1, 'appendonly', 'there is none');

    } else {
        is_call(call('k', %durable), 'UNACKED', 1, 'unknown command', 'it does not know what is on disk');
    }

    like(caller_nginx()->log, qr/\[warn\] .*idempotency_redis "no": .*\(appendonly no\)/, 'no append-only file: a warning');
    unlike(caller_nginx()->log, qr/\[warn\] .*idempotency_redis "r"/, '... where there is none');

    $no->command('CONFIG', 'SET', 'maxmemory', '100mb');
    $no->command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
    with('server 127.0.0.1:' . $no->port . ';');
    ok(until_true { caller_nginx()->log =~ /\[warn\] .*maxmemory-policy allkeys-lru/ }, 'it evicts: a warning');

    # it does, while we look
    my $used = $no->info('used_memory');
    call("k$_", script => $set, arg => ['x' x 1000]) for 1 .. 50;
    $no->command('CONFIG', 'SET', 'maxmemory', $used);
    call("l$_", script => $set, arg => ['x' x 1000]) for 1 .. 50;
    ok(until_true { caller_nginx()->log =~ /\[error\] .*has evicted \d+ keys/ }, 'it has: an error');

    # anew, and so without what it had
    $no->kill;
    $no->start;
    ok(until_true { caller_nginx()->log =~ /\[warn\] .*was started anew/ }, 'it was started anew: a warning');
}


# --- what is published ----------------------------------------------------------------

sub told_of {
    my $r = Redis->new(@_, args => ['--appendonly', 'yes']);

    with('server 127.0.0.1:' . $r->port . "; $patient");

    my @watches = (watching('c', n => 4, msec => 90000), watching('d', n => 2, msec => 90000));
    my $heard = sub { my ($c, $n) = @_; until_true { $r->command('PUBSUB', 'NUMSUB', $c)->[1] == $n } };

    ok($heard->('c', 1) && $heard->('d', 1), 'subscribed');
    ok(until_true { caller_nginx()->log =~ /told of c: 1/ }, '... which is told');

    $r->command('PUBLISH', 'c', 1);
    ok(until_true { caller_nginx()->log =~ /told of c: 2/ }, '... as is what is published');

    # a connection that is lost
    $r->command('CLIENT', 'KILL', 'TYPE', 'pubsub');
    ok(until_true { caller_nginx()->log =~ /told of c: 3/ }, '... and that it is heard again');
    is($watches[1]->response->{body}, "told 2\n", '... in each channel');

    ok($heard->('d', 0), '... until nobody listens');

    $r->command('PUBLISH', 'c', 1);
    is($watches[0]->response->{body}, "told 4\n", 'the last one');
    ok($heard->('c', 0), '... and nobody listens');

    # many, for one message each
    my @many = map watching("m$_", n => 2, msec => 90000), 1 .. 100;
    ok(until_true { @{$r->command('PUBSUB', 'CHANNELS', 'm*')} == 100 }, '100 channels');
    $r->command('PUBLISH', "m$_", 1) for 1 .. 100;
    is(scalar(grep { $_->response->{body} eq "told 2\n" } @many), 100, '... each told of its own');
    ok(until_true { @{$r->command('PUBSUB', 'CHANNELS', '*')} == 0 }, '... and none is left');

    # two of one channel
    my @two = map watching('two', n => 3, msec => 90000), 1, 2;
    ok($heard->('two', 1), 'two who watch one channel');
    until_true { caller_nginx()->log =~ /told of two/ };
    my $round = 0;
    until_true { $r->command('PUBLISH', 'two', 1); ++$round > 3 };
    like($_->response->{body}, qr/^told 3$/, '... are told') for @two;

    # who waits does not keep a worker for ever, and who doesn't not at all
    my $last = watching('last', n => 2, msec => 1500);
    ok($heard->('last', 1), 'one who waits');
    ok(gone(sub { like($last->response->{body}, qr/^told 1/, '... is waited for') }), '... then the worker exits');
}


sub comes_and_goes {
    my $r = Redis->new(@_, args => ['--appendonly', 'yes']);

    with('server 127.0.0.1:' . $r->port . '; timeout 1s; connections 3; replicas 0;');

    my ($descriptors, $memory);
    my $calls = 0;

    for my $round (1 .. 24) {
        my $watch = watching("c$round", n => 100, msec => 300);

        $calls += (() = call('k', script => $get, n => 20, lane => $_, msec => 20000) =~ /^error=0/mg) for 0 .. 2;

        if ($round % 2) {
            $r->kill;
            call('k', script => $get, n => 20, lane => $_, msec => 50) for 0 .. 2;
            $r->start;
        } else {
            $r->pause;
            call('k', script => $get, n => 20, lane => $_, msec => 50) for 0 .. 2;
            $r->resume;
        }

        $watch->response;
        until_true { up() };
        ($descriptors, $memory) = (descriptors(), memory()) if $round == 8;
    }

    ok($calls >= 24 * 20 * 3 * 0.9, 'it was there in between') or diag($calls);
    call('k', script => $get, lane => $_, msec => 20000) for 0 .. 2;
    cmp_ok(abs(descriptors() - $descriptors), '<=', 4, 'no descriptor is left of 24 times');
    cmp_ok(memory() - $memory, '<=', 1024, '... nor memory');
}


# --- sentinels ------------------------------------------------------------------------

sub sentinels {
    my %p = @_;

    my $r = Redis->new(%p, args => ['--appendonly', 'yes']);
    my $replica = Redis->new(%p, args => ['--appendonly', 'yes', '--replicaof', '127.0.0.1', $r->port]);
    my @s = Redis->sentinels($r, 3, %p, dead_after => 3_600_000);
    my $servers = join ' ', map 'server 127.0.0.1:' . $_->port . ';', @s;

    with({ r => "mode sentinel; master m; $servers timeout 1s; connect_timeout 1s; replicas 1;",
           none => "mode sentinel; master nobody; $servers timeout 300ms;",
           dead => 'mode sentinel; master m; server 127.0.0.1:' . dead_port() . '; timeout 300ms;' },
         allow => qr/idempotency_redis/);

    is_call(call('k', script => $set, arg => [1], msec => 20000), 'OK', 0, '"OK"', 'the master was found');
    is_call(call('k', script => $set, arg => [1], msec => 20000, durable => 1), 'OK', 0, '"OK"', '... and its replica');
    like(caller_nginx()->log, qr/the master "m" is 127\.0\.0\.1:@{[$r->port]}\n/, '... as the log says');
    is_call(call('k', script => $get, msec => 20000, at => 'none'), 'CONNECT', 0, '', 'a master that nobody knows');
    is_call(call('k', script => $get, msec => 20000, at => 'dead'), 'CONNECT', 0, '', 'sentinels that are not there');
    ok(until_true { caller_nginx()->log =~ /it does not know the master "nobody"/ }, '... as the log says');

    my $watch = watching('c', n => 2, msec => 90000);
    until_true { $r->command('PUBSUB', 'NUMSUB', 'c')->[1] };

    # one sentinel dies, which need not be the one that is listened to, then the master
    $s[0]->kill;
    $_->dead_after(1000) for @s[1, 2];
    $r->kill;
    ok(until_true { call('k', script => $get, msec => 1000) =~ /^error=0 .* reply="1"/ },
       'the master died: there is another');
    like(caller_nginx()->log, qr/the master "m" is 127\.0\.0\.1:@{[$replica->port]}\n/, '... as the log says');
    is($watch->response->{body}, "told 2\n", '... and who watches is told there');

    # the old one is back, as a replica, if they say so
    $_->dead_after(3_600_000) for @s[1, 2];
    $r->start;
    ok($replica->leads($r, @s[1, 2]), 'the old one is a replica') or diag(map $_->log, @s[1, 2], $r, $replica);
    ok(until_true { call('k', script => $set, arg => [2], msec => 2000, durable => 1) =~ /^error=0/ }, '... of the other');

    # on purpose, and without a death
    ok($r->leads($replica, @s[1, 2]), 'they are told to change, and do') or diag(map $_->log, @s[1, 2], $r, $replica);
    ok(until_true { call('k', script => $get, msec => 2000) =~ /^error=0 .* reply="2"/ }, '... as we do');
    ok(until_true { caller_nginx()->log =~ /is 127\.0\.0\.1:@{[$r->port]}\n(?:.*\n)*.*is 127\.0\.0\.1:@{[$replica->port]}\n(?:.*\n)*.*is 127\.0\.0\.1:@{[$r->port]}\n/ },
       '... as the log says');

    # a master that stands still while another is made: what it is told later is
    # told by nobody who has its answer for true
    my $new = $replica;
    ok($r->leads($replica, @s[1, 2]), 'the other one follows') or diag(map $_->log, @s[1, 2], $r, $replica);
    $r->pause;
    $_->dead_after(1000) for @s[1, 2];
    ok(until_true { call('z', script => $set, arg => ['new'], msec => 1000) =~ /^error=0/ },
       'the master stands still: there is another');
    $_->dead_after(3_600_000) for @s[1, 2];
    is($new->command('GET', 'z'), 'new', '... which has it');
    $r->resume;

    for (1 .. 20) {
        my $said = call('z', script => $get, msec => 1000, lane => $_ % 2);
        next if $said =~ /^error=[^0]/ || $said =~ /reply="new"/;
        fail('... and the old one is not asked') or diag($said);
    }

    ok($new->leads($r, @s[1, 2]), '... and becomes a replica') or diag(map $_->log, @s[1, 2], $r, $new);
    is_call(call('z', script => $get, msec => 20000), 'OK', 0, 'reply="new"', '... nothing is lost');

    ok(gone(sub { }), 'a worker that has nothing to do exits');
}


sub sentinel_tls {
    my %p = (@_, tls => of('server'), args => ['--tls-replication', 'yes']);

    my $r = Redis->new(%p);
    my ($s) = Redis->sentinels($r, 1, %p, port => $r->{tls}, replicas => 0);

    with("mode sentinel; master m; server 127.0.0.1:$s->{tls}; $patient ssl on;"
         . " ssl_trusted_certificate $pki/ca.pem;");

    is_call(call('k', script => $set, arg => [1]), 'OK', 0, '"OK"', 'the master was found');
}


# --- a cluster --------------------------------------------------------------------------

sub cluster {
    my %p = @_;

    my @n = Redis->cluster(6, %p, tls => of('server'));

    with({ r => 'mode cluster; server 127.0.0.1:' . $n[3]->port . '; server 127.0.0.1:' . $n[1]->port
                . '; timeout 1s; connect_timeout 1s;',
           t => "mode cluster; server localhost:$n[0]{tls}; $patient ssl on;"
                . " ssl_trusted_certificate $pki/ca.pem;" }, allow => qr/idempotency_redis/);

    my @keys = map "k$_", 1 .. 60;
    my $all = sub { my (%o) = @_;
                    return scalar grep { call($_, msec => 20000, %o) =~ /^error=0/ } @keys };

    is($all->(script => $set, arg => [1]), 60, 'keys of all slots');
    is($all->(script => $get), 60, '... are there');
    is($all->(script => $get, at => 't'), 60, '... by TLS, too');

    for my $i (0 .. 2) {
        cmp_ok($n[$i]->command('DBSIZE'), '>', 5, "... and at node $i") or diag($n[$i]->log);
    }

    # braces
    is_call(call('{k1}x', script => 'return redis.call("set", KEYS[1], redis.call("get", "k1"))', msec => 20000),
            'OK', 0, '"OK"', 'a key with braces is where its tag is');

    # each is told by its own
    my @watches = map watching($_, n => 2, msec => 90000), @keys[0 .. 9];
    my $heard = sub {
        my ($key) = @_;
        return until_true {
            grep { my $x = eval { $_->command('PUBSUB', 'SHARDNUMSUB', $key) }; ref $x && $x->[1] } @n };
    };
    ok($heard->($_), "$_ is listened to") for @keys[0 .. 9];
    call($_, script => 'return redis.call("spublish", KEYS[1], 1)', msec => 20000) for @keys[0 .. 9];
    is(scalar(grep { $_->response->{body} eq "told 2\n" } @watches), 10, '... and told');

    # somebody with no more rights than that takes
    my $password = File::Temp->new(TMPDIR => 1);
    print $password "secret\n";
    close $password;
    $_->command('ACL', 'SETUSER', 'nginx', 'on', '>secret', rights(2, 'k')) for @n;

    my $other = nginx(modules_after => [Redis->caller], zone => 0,
                      http => "idempotency_redis r { mode cluster; server 127.0.0.1:@{[$n[4]->port]}; timeout 20s;"
                              . " connect_timeout 20s; user nginx; password_file $password; }",
                      server => 'location / { redis_caller r; }');
    is(scalar(grep { $other->get(uri($_, script => $get))->{body} =~ /^error=0/ } @keys), 60, 'a user');
    my $told = $other->start('GET', '/?watch=k50&n=2&msec=60000');
    $heard->('k50');
    like($other->get(uri('k50', script => 'return redis.call("spublish", KEYS[1], 1)'))->{body}, qr/^error=0.*:[12]$/m,
         '... that may publish');
    is($told->response->{body}, "told 2\n", '... and be told');
    unlike($other->log, qr/NOPERM|\[error\]/, '... without a complaint');
    $other->stop;

    # a slot moves, with its keys: ASK, then MOVED
    my ($from, $to) = owner($keys[0], @n);
    my $slot = $n[0]->command('CLUSTER', 'KEYSLOT', $keys[0]);
    my $watch = watching($keys[0], n => 2, msec => 90000);
    $heard->($keys[0]);

    $to->takes('CLUSTER', 'SETSLOT', $slot, 'IMPORTING', $from->{id});
    $from->takes('CLUSTER', 'SETSLOT', $slot, 'MIGRATING', $to->{id});
    is_call(call($keys[0], script => $get, msec => 20000), 'OK', 0, '"1"', 'a slot that moves: it is still here');
    $from->command('MIGRATE', '127.0.0.1', $to->{tls}, $keys[0], 0, 5000);
    is_call(call($keys[0], script => $get, msec => 20000), 'OK', 0, '"1"', '... it is already there');
    is_call(call($keys[0], script => $set, arg => [3], msec => 20000), 'OK', 0, '"OK"', '... and written there');
    $_->command('CLUSTER', 'SETSLOT', $slot, 'NODE', $to->{id}) for $to, $from, grep { $_ != $to && $_ != $from } @n[0 .. 2];
    is_call(call($keys[0], script => $get, msec => 20000), 'OK', 0, '"3"', '... moved');
    ok($heard->($keys[0]), '... and listened to there');
    ok(until_true { (() = $to->command('PUBSUB', 'SHARDNUMSUB', $keys[0])->[1]) && $to->command('PUBSUB', 'SHARDNUMSUB', $keys[0])->[1] },
       '... at the other node');
    until_true { call($keys[0], script => 'return redis.call("spublish", KEYS[1], 1)', msec => 20000) =~ /reply=:1/ };
    like($watch->response->{body}, qr/^told 2/, '... and told');

    # a master dies, and its replica follows
    my ($dead) = owner($keys[1], @n[0 .. 2]);
    Redis->failovers('yes', @n);
    until_true { ($dead->info('slave0') // '') =~ /state=online,.*lag=[01]/ };
    $dead->kill;
    my ($answered) = (0);
    ok(until_true { call($keys[1], script => $get, msec => 1000) =~ /^error=0 .* reply="1"/ },
       'a master died: its replica has what it had');
    ok(until_true { $all->(script => $get, msec => 2000) == 60 }, '... and all others are there');

    # it is back, as a replica
    $dead->start;
    ok(until_true { ($dead->info('role') // '') eq 'slave' }, 'it is back as a replica');
    ok(until_true { $all->(script => $set, arg => [4], msec => 2000) == 60 }, '... and all goes on');

    ok(gone(sub { }), 'a worker that has nothing to do exits');
}


# Names that nobody here knows: their addresses are told beside them.

sub names {
    my @n = Redis->cluster(3, @_, args => [qw(--cluster-announce-hostname no-such-host.invalid
                                              --cluster-preferred-endpoint-type hostname)]);

    with('mode cluster; server 127.0.0.1:' . $n[0]->port . "; $patient", allow => qr/idempotency_redis/);

    my @keys = map "k$_", 1 .. 30;

    is(scalar(grep { call($_, script => $set, arg => [1], msec => 20000) =~ /^error=0/ } @keys), 30,
       'each node is found');
    unlike(caller_nginx()->log, qr/resolver|\[error\]/, '... by its address');
}


# Who has it, and one who has not.

sub owner {
    my ($key, @n) = @_;

    my $slot = $n[0]->command('CLUSTER', 'KEYSLOT', $key);
    my ($range) = grep { $_->[0] <= $slot && $slot <= $_->[1] } @{$n[0]->command('CLUSTER', 'SLOTS')};
    my ($owner) = grep { $_->{id} eq $range->[2][2] } @n;
    my ($other) = grep { $_ != $owner } @n[0 .. 2];

    return ($owner, $other);
}
