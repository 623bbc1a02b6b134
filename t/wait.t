#!/usr/bin/perl

# docs/requests.md, pending: a duplicate waits for the outcome and
# gets it the moment it exists, in whatever worker it waits, or is told at once
# that another is at work.

use lib 't/lib';
use Idempotency;
use Stress;

use Time::HiRes qw(sleep time);

my $wake = 0.5;     # a waiter that nobody calls looks again after so long

my $n = nginx(workers => 4, http => <<'EOC' . crowd(<<'EOC2'));
    log_format result '$request_uri $status $idempotency_status';
    access_log $TEST_NGINX_ROOT/logs/access.log result;
    idempotency_wait_timeout 10m;
    proxy_read_timeout 10m;
EOC
    idempotency zone=z;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /short { idempotency_wait_timeout 300ms;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject;
                       proxy_pass http://$TEST_NGINX_BACKEND; }
    location /accepted { idempotency_in_progress accepted;
                         proxy_pass http://$TEST_NGINX_BACKEND; }
    location /coded { idempotency_in_progress reject;
                      idempotency_status in_progress=425;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dry { idempotency_dry_run on;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
    location /doubt { proxy_read_timeout 500ms;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /small { idempotency_max_response 1k;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /moved { error_page 404 = @moved; }
    location @moved { auth_request /may; proxy_pass http://$TEST_NGINX_BACKEND; }
    location = /may { internal; if ($http_x_may) { return 403; } return 204; }
EOC2


# Starts waiters whose own looks are spread over all of the time between two.

sub spread {
    my (@start) = @_;

    return map { sleep $wake / @start; $_->() } @start;
}


# Some of them were about to look again after nearly that long: that all are
# answered sooner is the wake's doing.

sub woken {
    my ($go, @r) = @_;

    my ($last) = sort { $b <=> $a } map { $_->{arrived} - $go } @r;

    return $last < 0.7 * $wake;
}


# --- woken at once, everywhere ----------------------------------------------

{
    for my $round (1 .. 6) {
        my $id = "all$round";
        my $p = parking($n);
        my ($owner, $uri, @o) = owner($n, $id, pid => ($n->workers)[$round % 4]);

        my %pid;
        my @w = map {
            my $pid = $_;
            map { my $c = connection_to($n, $pid); $pid{$c} = $pid; $c } 1 .. 5
        } $n->workers;

        ask($_, 'POST', $uri, @o) for @w;
        ok(parked($p, 1 + @w), "round $round: 20 wait in 4 workers");
        is(scalar(grep $_->readable, @w), 0, '... and get nothing yet');

        go($id);
        my @r = gather(@w);
        my $first = $owner->response;

        is(told($first), '200 NEW', '... the owner gets its answer');
        is_deeply([ map { told($_) } @r ], [ ('200 WAITED') x 20 ],
                  '... all get the outcome');
        is_deeply([ map { $_->header('X-Pid') } @r ], [ map { $pid{$_} } @w ],
                  '... each from its own worker');

        my $same = grep { $_->{body} eq $first->{body} && $_->replayed } @r;
        is($same, 20, '... the same, marked as a replay');
        is(executions($id), 1, '... executed once');

        $_->close for @w, $owner;
    }
}


# A machine may be too slow for one answer, but hardly each time.

{
    my $soon;

    for my $round (1 .. 10) {
        my $id = "soon$round";
        my $p = parking($n);
        my ($owner, $uri, @o) = owner($n, $id);
        my @w = spread(map {
            my $c = connection_to($n, $_);
            sub { ask($c, 'POST', $uri, @o) }
        } ($n->workers) x 4);

        parked($p, 1 + @w);

        my $go = time;
        go($id);
        $soon = woken($go, gather(@w));
        $_->close for @w, $owner;
        last if $soon;
    }

    ok($soon || answers_late(), 'they are woken, they do not look again');
}


# Bodies that are stored in several pieces; a response without any.

for my $what ([ large => '&size=300000' ], [ empty => '&status=204' ],
              [ error => '&status=500' ], [ chunks => '&te=chunked&size=9000' ])
{
    my ($name, $more) = @$what;
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, "kind-$name", more => $more);
    my @w = map { $n->start('POST', $uri, @o) } 1 .. 6;

    ok(parked($p, 7), "$name: waiting");
    go("kind-$name");

    my $first = $owner->response;
    my @r = gather(@w);
    is(scalar(grep { $_->header('X-Status') eq 'WAITED'
                     && $_->{body} eq $first->{body}
                     && $_->{status} == $first->{status} } @r),
       6, "$name: all get the same");
    is(executions("kind-$name"), 1, "$name: executed once");
    $_->close for @w, $owner;
}


# The outcome may be none that can be replayed.

{
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'big', at => '/small', more => '&size=5000');
    my @w = map { $n->start('POST', $uri, @o) } 1 .. 4;

    ok(parked($p, 5), 'a response over the limit: waiting');
    go('big');
    is(length $owner->response->{body}, 5000, '... passed on untouched');

    my @r = gather(@w);
    is_deeply([ map { told($_) . ' ' . problem($_) } @r ],
              [ ('409 NOT_KEPT not_kept') x 4 ],
              '... those who wait are told so');
    is(executions('big'), 1, '... executed once');
    $_->close for @w, $owner;

    $p = parking($n);
    ($owner, $uri, @o) = owner($n, 'slow', at => '/doubt');
    @w = map { $n->start('POST', $uri, @o) } 1 .. 4;
    is(told($owner->response), '504 NEW', 'an upstream times out');
    @r = gather(@w);
    is_deeply([ map { $_->{status} } @r ], [ (504) x 4 ],
              '... those who wait get the same error');
    is(executions('slow'), 1, '... executed once');
    $_->close for @w, $owner;
    go('slow');
}


# --- one that follows in the same connection --------------------------------

{
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'pipe');
    my $c = $n->connect;

    $c->{method} = 'POST';
    $c->send(message('POST', $uri, @o) . message('GET', '/pid'));

    ok(parked($p, 2), 'a pipelined request behind one that waits');
    ok(!$c->readable, '... waits as well');
    go('pipe');
    is(told($c->response), '200 WAITED', '... the one is answered');
    like($c->response('GET')->{body}, qr/^\d+$/, '... and so is the other');
    $owner->response;
    $_->close for $c, $owner;
}


# --- what is answered at once -----------------------------------------------

{
    my ($owner, $uri, @o) = owner($n, 'mine');
    my $r = $n->post($uri, @o, body => 'another');

    is(told($r), '409 CONFLICT', 'a conflict with a pending one');
    is(problem($r), 'conflict', '... its problem');
    like($n->log, qr/conflict, reason: body.*id=mine/, '... and why');
    ok(!$owner->readable, '... it is still pending');
    go('mine');
    is(told($owner->response), '200 NEW', '... and ends well');
    $owner->close;

    for (['/reject', '409 IN_PROGRESS'], ['/accepted', '202 IN_PROGRESS'],
         ['/coded', '425 IN_PROGRESS'])
    {
        my ($at, $status) = @$_;
        (my $id = $at) =~ s{/}{};

        ($owner, $uri, @o) = owner($n, $id, at => $at);

        $r = $n->post($uri, @o);
        is(told($r), $status, "$id: a pending one");
        is($r->header('Retry-After'), 1, "$id: when to come back");
        is(problem($r), 'in_progress', "$id: its problem");
        is(told($n->post($uri, @o, body => 'another')),
           '409 CONFLICT', "$id: a conflict is one");
        go($id);
        is(told($owner->response), '200 NEW', "$id: it ends");
        is(told($n->post($uri, @o)), '200 REPLAYED', "$id: and is replayed");
        is(executions($id), 1, "$id: executed once");
        $owner->close;
    }
}


# --- patience ends ----------------------------------------------------------

{
    my ($owner, $uri, @o) = owner($n, 'short', at => '/short');
    my $from = time;
    my $r = $n->post($uri, @o);
    my $took = time - $from;

    is(told($r), '409 IN_PROGRESS', 'the end of idempotency_wait_timeout');
    is($r->header('Retry-After'), 1, '... when to come back');
    cmp_ok($took, '>=', 0.29, '... not before its time');
    ok(!$owner->readable, '... the owner is still at work');

    is(told($n->post($uri, @o)), '409 IN_PROGRESS', '... for each of them');

    go('short');
    is(told($owner->response), '200 NEW', '... the owner ends');
    is(told($n->post($uri, @o)), '200 REPLAYED', '... and is replayed');
    $owner->close;
}


# --- where the response's location turns one away ---------------------------

{
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'moved', at => '/moved');
    my @c = map { $n->start('POST', $uri, @o, headers => [ @$_ ]) }
            [], [ 'X-May: not' ];

    parked($p, 1 + @c);
    go('moved');
    is(told(gather(@c)), '200 WAITED, 403 -', 'one is let in there');
    is(told($owner->response) . ' ' . executions('moved'), '200 NEW 1',
       '... executed once');
    $_->close for @c, $owner;
}


# --- those who leave --------------------------------------------------------

{
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'leave');
    my @stay = map { $n->start('POST', $uri, @o) } 1 .. 4;
    my @fin = map { $n->start('POST', $uri, @o) } 1 .. 4;
    my @rst = map { $n->start('POST', $uri, @o) } 1 .. 4;
    my @h2 = map { h2($n) } 1 .. 3;
    my @s = map { $_->request('POST', $uri, @o) } @h2;

    ok(parked($p, 16), '12 and 3 of HTTP/2 wait');
    $_->close for @fin;
    $_->reset for @rst;
    $h2[0]->close;
    $h2[1]->reset_stream($s[1]);

    ok(until_true {
        my @gone = $n->access_log =~ m{^/x\?id=leave\S* 499 IN_PROGRESS$}mg;
        @gone == 10;
    }, '10 of them leave: 499, at once') or diag($n->access_log);

    is(scalar(grep $_->readable, @stay, $owner), 0, '... the others wait on');

    go('leave');
    is_deeply([ map { told($_) } gather(@stay) ],
              [ ('200 WAITED') x 4 ], '... and are answered');
    is($h2[2]->response($s[2])->{status}, 200, '... on HTTP/2 too');
    is(told($owner->response), '200 NEW', '... as is the owner');
    is(executions('leave'), 1, '... executed once');
    $_->close for @stay, $owner, @h2[1, 2];
}


# Over TLS, where the end is announced.

{
    my $dir = File::Temp->newdir(TMPDIR => 1);

    system("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
           . " -keyout $dir/key.pem -out $dir/cert.pem >$dir/log 2>&1") == 0
        or die 'no certificate';
    chmod 0755, $dir;

    my $t = nginx(http => <<"EOC");
    log_format result '\$request_uri \$status \$idempotency_status';
    access_log \$TEST_NGINX_ROOT/logs/access.log result;
    ssl_certificate $dir/cert.pem;
    ssl_certificate_key $dir/key.pem;
    server {
        listen 127.0.0.1:\$TEST_NGINX_PORT;
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1 ssl;
        server_name localhost;
        location / {
            idempotency zone=z;
            idempotency_wait_timeout 10m;
            proxy_pass http://\$TEST_NGINX_BACKEND;
        }
    }
EOC

    my $uri = '/x?id=tls&gate=1';
    my $owner = $t->start('POST', $uri, key => 'tls', body => 'b',
                          host => 'localhost', type => 'text/plain');
    held('tls');

    # on a busy machine one may leave before it has asked
    ok(until_true {
        $t->curl('-k', '-m', 2, '-d', 'b', '-H', 'Content-Type: text/plain',
                 '-H', 'Idempotency-Key: tls', '-H', 'Host: localhost',
                 'https://127.0.0.1:' . $t->port(1) . $uri);
        $t->access_log =~ m{^/x\?id=tls\S* 499 }m;
    }, 'one that waits over TLS leaves: 499') or diag($t->access_log);

    go('tls');
    is($owner->response->{status}, 200, '... the owner is answered');
    is(executions('tls'), 1, '... executed once');
    $owner->close;
    $t->stop;
}


# Who has only no more to say is answered, as an owner and a replay's client are.

{
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'half');
    my @half = map { $n->start('POST', $uri, @o) } 1 .. 4;
    my @old = map { $n->start('POST', $uri, @o, version => '1.0') } 1 .. 2;
    my @fin = map { $n->start('POST', $uri, @o) } 1 .. 2;

    ok(parked($p, 9), 'half-closed: they wait');
    shutdown $_->{sock}, 1 for $owner, @half, @old;
    $_->close for @fin;

    ok(until_true {
        my @gone = $n->access_log =~ m{^/x\?id=half\S* 499 }mg;
        @gone == 2;
    }, 'half-closed: who has gone is told apart') or diag($n->access_log);

    go('half');

    my @r = map { $_->response } @half, @old;
    is_deeply([ map { told($_) } @r ], [ ('200 WAITED') x 6 ],
              'half-closed: all get their answer');
    is(scalar(grep { @{$_->{interim}} } @r[4, 5]), 0,
       'half-closed: HTTP/1.0 gets nothing else');
    is(told($owner->response), '200 NEW', 'half-closed: the owner too');

    my $c = $n->start('POST', $uri, @o);
    shutdown $c->{sock}, 1;
    is(told($c->response), '200 REPLAYED', 'half-closed: and a replay');
    is(executions('half'), 1, 'half-closed: executed once');
    $_->close for @half, @old, $owner, $c;
}


# --- HTTP/2 -----------------------------------------------------------------

{
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'h2');
    my $h = h2($n);
    my @s = map { $h->request('POST', $uri, @o) } 1 .. 5;
    my $other = h2($n);
    my $s = $other->request('POST', $uri, @o);

    ok(parked($p, 7), 'HTTP/2: waiting, five of them in one connection');

    my $conflict = $h->request('POST', $uri, @o, body => 'another');
    is($h->response($conflict)->{status}, 409, '... a conflict is told');

    my $go = time;
    go('h2');
    my $first = $owner->response;
    my @r = map { $h->response($_) } @s;

    is_deeply([ map { "$_->{status} $_->{body}" } @r, $other->response($s) ],
              [ ("200 $first->{body}") x 6 ], '... all are answered');

    # the owner may be of HTTP/2 as well
    $p = parking($n);
    my $own = $h->request('POST', '/x?id=h2own&gate=1', key => 'h2own', body => 'b');
    held('h2own');
    my @more = map { $h->request('POST', '/x?id=h2own&gate=1', key => 'h2own',
                                 body => 'b') } 1 .. 3;
    my $c = $n->start('POST', '/x?id=h2own&gate=1', key => 'h2own', body => 'b');
    ok(parked($p, 5), '... an owner and three that wait in one connection');
    go('h2own');
    is_deeply([ map { $h->response($_)->{body} } $own, @more ],
              [ ("exec=1 id=h2own\n") x 4 ], '... all get the same');
    is(told($c->response), '200 WAITED', '... and one of HTTP/1.1');
    is(executions($_), 1, '... executed once') for qw(h2 h2own);
    $_->close for $h, $other, $owner, $c;
}


# --- after a release, one of them -------------------------------------------

# Each execution says that it was none, so that the next one takes its place.

{
    my $waiting = 6;
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'heir',
                                  more => '&h=X-Accel-Idempotency:%20release');
    my @w = map { $n->start('POST', $uri, @o) } 1 .. $waiting;

    ok(parked($p, 1 + $waiting), 'waiting for one that is released');

    my @left = ($owner, @w);
    my (@said, @one);

    for my $k (1 .. 1 + $waiting) {
        # all is quiet: one is at work, the others wait
        held('heir');
        ok(parked($p, scalar @left), "... owner number $k");
        push @one, executions('heir');
        is(go('heir'), 1, '... one at work');

        my $c = Idempotency::Connection::serve(
            sub { (grep length $_->{buf}, @left)[0] }, time + patience(), @left)
            or last;
        push @said, told($c->response);
        @left = grep { $_ != $c } @left;
        $c->close;
    }

    is_deeply(\@one, [ 1 .. 1 + $waiting ], '... one execution after the other');
    is_deeply(\@said, [ ('200 NEW') x (1 + $waiting) ],
              '... each gets its own');
    is(executions('heir'), 1 + $waiting, '... and no more');
}


# --- a dry run --------------------------------------------------------------

{
    my ($owner, $uri, @o) = owner($n, 'dry', at => '/dry');
    my $c = $n->start('POST', $uri, @o);

    held('dry', 2);
    pass('a dry run never waits');
    go('dry');
    is(told($c->response), '200 IN_PROGRESS_DRY_RUN',
       '... it says what would have been');
    is(told($owner->response), '200 NEW_DRY_RUN', '... to both');
    is(executions('dry'), 2, '... and passes them');
    $_->close for $c, $owner;
}


# --- across a reload --------------------------------------------------------

sub generations {
    my ($id) = @_;

    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, $id);
    my @ask = (sub { $n->start('POST', $uri, @o) }) x 8;
    my @old = spread(@ask);
    my $h = h2($n);
    my $s = $h->request('POST', $uri, @o);

    ok(parked($p, 10), 'waiting when a reload comes');

    my %old = map { $_ => 1 } $n->workers;
    ok($n->reload, '... it comes');
    $p = parking($n);
    my @mid = spread(@ask);
    ok(parked($p, 18), '... new workers have waiters, too');
    ok($n->reload, '... and another');
    $p = parking($n);
    my @new = spread(@ask);
    ok(parked($p, 26), '... and newer ones');

    my $go = time;
    go($id);
    my @r = gather(@old, @mid, @new);
    is_deeply([ map { told($_) } @r ], [ ('200 WAITED') x 24 ],
              '... three generations are answered');
    is(scalar(grep { $old{$_->header('X-Pid')} } @r), 8,
       '... each by its own workers');
    is($h->response($s)->{status}, 200, '... on HTTP/2 too');
    is(told($owner->response), '200 NEW', '... as is the owner');
    is(executions($id), 1, '... executed once');

    $_->close for @old, @mid, @new, $owner, $h;

    ok(until_true { !grep { kill 0, $_ } keys %old },
       '... and the old ones end');

    return woken($go, @r);
}

{
    my $soon;
    $soon ||= generations("hup$_") for 1 .. 5;
    ok($soon || answers_late(), '... all are woken, they do not look again');
}

{
    # the owner in a new worker, a waiter in an old one, is the other way round
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'turn',
                                  more => '&h=X-Accel-Idempotency:%20release');
    my @w = map { $n->start('POST', $uri, @o) } 1 .. 3;
    ok(parked($p, 4), 'waiting for one that is released after a reload');
    my @before = $n->workers;
    ok($n->reload, '... which comes');
    go('turn');
    is(told($owner->response), '200 NEW', '... the owner ends');
    held('turn');
    is(executions('turn'), 2, '... an old worker has the next one');
    $p = parking($n);
    push @w, $n->start('POST', $uri, @o);
    ok(parked($p, 1), '... a new worker waits for that');
    go('turn');
    held('turn');
    go('turn');
    held('turn');
    go('turn');
    held('turn');
    go('turn');
    is(scalar(grep { told($_) eq '200 NEW' } gather(@w)), 4,
       '... and all come to their turn');
    is(executions('turn'), 5, '... one after the other');
    $_->close for @w, $owner;
}

$n->stop;


# --- a crowd ----------------------------------------------------------------

{
    my $count = 1500;

    $n = nginx(connections => 4096, workers => 2, http => crowd(<<'EOC'));
        idempotency zone=z;
        idempotency_wait_timeout 10m;
        proxy_read_timeout 10m;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'crowd');
    my @w = map { $n->start('POST', $uri, @o) } 1 .. $count;

    ok(parked($p, 1 + $count), "$count wait for one token");
    go('crowd');

    my @r = gather(@w);
    is(scalar(grep { told($_) eq '200 WAITED'
                     && $_->{body} eq "exec=1 id=crowd\n" } @r),
       $count, '... all get the outcome');
    is(executions('crowd'), 1, '... executed once');
    is($owner->response->{status}, 200, '... the owner, too');
    $_->close for @w, $owner;

    # so many tokens, more than a worker is told of one by one
    my $tokens = 1000;
    $p = parking($n);

    my @own = map { $n->start('POST', '/x?id=many&gate=1', key => "many$_",
                              body => 'b') } 1 .. $tokens;
    held('many', $tokens);
    @w = map { $n->start('POST', '/x?id=many&gate=1', key => "many$_",
                         body => 'b') } 1 .. $tokens;
    ok(parked($p, 2 * $tokens), "$tokens tokens, each with one that waits");
    go('many');

    my @first = gather(@own);
    @r = gather(@w);
    is(scalar(grep { told($first[$_]) eq '200 NEW'
                     && told($r[$_]) eq '200 WAITED'
                     && $first[$_]{body} eq $r[$_]{body} } 0 .. $tokens - 1),
       $tokens, '... each gets its own outcome');
    is(executions('many'), $tokens, '... each executed once');
}

$n->stop;


# --- a crowd and a large response -------------------------------------------

# A file is kept for a second; answers of a store that is late may be further apart.

sub few {
    my ($files) = @_;

    return $files == 1 || $files > 1 && $files < 5 && ($ENV{TEST_IDEMPOTENCY_STORE} // '') eq 'late';
}


{
    my $count = 40;

    $n = nginx(connections => 1024, http => crowd(<<'EOC'));
        idempotency zone=z;
        idempotency_max_response 1m;
        client_body_temp_path large_bodies;
        location / { limit_rate 1; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

    my ($worker) = $n->workers;
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'large', more => '&size=300000');
    my @w = map { $n->start('POST', $uri, @o) } 1 .. $count;
    my $files = sub {
        my @fd = grep +(readlink // "") =~ /large_bodies/, glob "/proc/$worker/fd/*";
        return scalar keys %{{ map { (stat)[1] => 1 } @fd }};
    };

    ok(parked($p, 1 + $count), "$count wait for a response of 300000 bytes");
    is($files->(), 0, '... and no file has one');
    go('large');

    Idempotency::Connection::serve(sub { (grep !length $_->{buf}, @w) ? undef : 1 },
                                   time + Idempotency::patience(), @w);
    is(scalar(grep length $_->{buf}, @w), $count, '... all are being answered');
    ok(few($files->()), '... from one file');

    my $sockets = sub { scalar grep +(readlink // "") =~ /^socket/, glob "/proc/$worker/fd/*" };
    my $open = $sockets->();

    $_->close for @w[1 .. $#w];
    ok(Idempotency::until_true(sub { $sockets->() <= $open - $#w }), '... all but one leave');
    ok(few($files->()), '... which still has it');
    $_->close for $w[0], $owner;
    ok(Idempotency::until_true(sub { $files->() == 0 }), '... and the last one takes it along');
}

done_testing();
