#!/usr/bin/perl

# docs/operation.md, "Stop and reload": with a file (idempotency_zone, state) what a
# token is bound to outlives nginx, however it ends: a stop, kill -9 of all its
# processes, a binary upgrade. In each mode. Without a file it does not, which is
# asked in the same way.

use lib 't/lib';
use Idempotency;
use Restart;
use Stress;

use Time::HiRes qw(time sleep);

my $common = <<'EOC';
    add_header X-Token $idempotency_token always;
    add_header X-Age $idempotency_age always;
    add_header X-Expires $idempotency_expires always;
    add_header X-Fence $idempotency_fence always;
    add_header X-Reason $idempotency_reason always;

    idempotency zone=z;
    idempotency_wait_timeout 10m;
    idempotency_max_response 100k;
    idempotency_content_window 1h;
    idempotency_ignore_fields csrf;
    proxy_read_timeout 10m;
    proxy_http_version 1.1;
    proxy_set_header X-Fence $idempotency_fence;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /retry { idempotency_in_doubt retry; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /brief { idempotency_window 2s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /content { idempotency_missing_key content; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /form { idempotency_missing_key form; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /uuid7 { idempotency_key_format uuid7; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dead { proxy_pass http://$TEST_NGINX_DEAD; }
EOC

my $died = qr/exited on signal/;
my $n;

sub start_nginx {
    my ($mode, %o) = @_;

    $n->stop if $n;

    my $text = crowd($common . ($o{more} // ''));

    $n = outliving(workers => 2, allow => $died,
                   zone => with_state($mode, size => $o{size}), http => $text);
}


my $names = 0;

sub name { return 'n' . ++$names . '-' . shift }

sub order { my ($uri, @o) = @_; return $n->sure($uri, body => 'b', @o) }


# Each way that it may go, and come again.

my %ways = (
    QUIT => sub { $n->restart('QUIT') },
    TERM => sub { $n->restart('TERM') },
    'kill -9' => sub { $n->restart('KILL') },
    USR2 => sub { $n->upgrade; $n->retire },
    'USR2, kill -9' => sub { $n->upgrade; $n->retire('KILL') },
);

my @ways = ('QUIT', 'TERM', 'kill -9', 'USR2', 'USR2, kill -9');


# What is claimed and recorded is written at once, but not before the answer,
# unless in mode strict. It is written in the order in which it happened: what
# was told before the first of two responses, when the second one can be read.

sub settled {
    my @said = map { my $id = name('settled'); order("/x?id=$id", key => $id);
                     written("id=$id") } 1, 2;

    return !grep { !$_ } @said;
}


sub written {
    my ($bytes) = @_;

    return until_true {
        grep { index(slurp($_), $bytes) >= 0 } glob $n->root . '/z.db*';
    };
}


# --- the control ---------------------------------------------------------------

start_nginx('');

for my $way (@ways) {
    my $id = name('control');

    is(told(order("/x?id=$id", key => $id)), '200 NEW', "without a file, $way");
    is(told(order("/x?id=$id", key => $id)), '200 REPLAYED', '... replayed');
    $ways{$way}->();
    is(told(order("/x?id=$id", key => $id)), '200 NEW', '... and forgotten');
    is(executions($id), 2, '... executed twice');
}

$n->stop;

if (my $why = no_state()) {
    diag("no file: $why");
    done_testing();
    exit;
}


# --- what is over ----------------------------------------------------------------

# What is asked of each token, and what is told each time but the first: status
# and how often it was executed in the end; a replay is one to the byte.

my $browser = 'Sec-Fetch-Mode: navigate';
my $form = 'application/x-www-form-urlencoded';

my @kinds = (
    [ 'a plain response', '/x', 'REPLAYED' ],
    [ 'header lines', '/x?status=201&reason=Made%20It&h=X-A:%201&h=ETag:%20"a"&h=X-A:%202',
      'REPLAYED' ],
    [ 'cookies', '/x?h=Set-Cookie:%20a=1&h=Set-Cookie:%20b=2', 'REPLAYED',
      headers => [ 'Cookie: me=1' ] ],
    [ 'no body', '/x?status=204', 'REPLAYED' ],
    [ 'a redirect', '/x?status=303&h=Location:%20/y&size=0', 'REPLAYED' ],
    [ 'what nobody in particular began, to a cookie of it', '/x?status=302&h=Set-Cookie:%20s=1', 'REPLAYED',
      later => [ 'Cookie: s=1' ] ],
    [ '... and to another', '/x?status=302&h=Set-Cookie:%20s=1', 'CONFLICT', later => [ 'Cookie: s=2' ] ],
    [ 'an error', '/x?status=500&body=sorry', 'REPLAYED' ],
    [ 'large and binary', '/x?size=90001', 'REPLAYED' ],
    [ 'in chunks, with trailers', '/x?size=30001&te=chunked&trailer=X-T:%20t', 'REPLAYED',
      headers => [ 'TE: trailers' ] ],
    [ 'too large', '/x?size=200000', 'NOT_KEPT' ],
    [ 'broken off', '/x?size=2000&cut=1000', 'NOT_KEPT' ],
    [ 'a gateway error', '/x?close=1', 'REPLAYED' ],
    [ 'released by the application', '/x?h=X-Accel-Idempotency:%20release', 'NEW' ],
    [ 'kept by the application', '/x?status=401&h=X-Accel-Idempotency:%20keep', 'REPLAYED' ],
    [ 'released by its status', '/x?status=429', 'NEW' ],
    [ 'never sent', '/dead', 'NEW' ],
    [ 'a gateway error, retry', '/retry?close=1', 'NEW' ],
    [ 'a key of its own time', '/uuid7', 'REPLAYED' ],
    [ 'content', '/content', 'REPLAYED', key => undef ],
    [ 'a form', '/form', 'REPLAYED', key => undef, type => $form,
      headers => [ $browser ], bodies => [ 'a=1&csrf=1', 'csrf=2&a=1' ] ],
);


sub ask_of {
    my ($k, $again) = @_;

    my $o = $k->{o};
    my $body = $o->{bodies} ? $o->{bodies}[$again ? 1 : 0] : 'b';
    my @later = $again && $o->{later} ? (headers => $o->{later}) : ();

    return $n->sure($k->{uri}, key => $k->{key}, %$o, @later, body => $body);
}


sub make {
    return map {
        my ($what, $uri, $then, %o) = @$_;

        my $id = name($what =~ tr/a-z//cdr);
        my $k = { what => $what, then => $then, o => \%o, id => $id,
                  key => $uri =~ /uuid7/ ? Idempotency::uuid7(0) : $id,
                  uri => $uri . ($uri =~ /\?/ ? '&' : '?') . "id=$id" };

        $k->{first} = ask_of($k);
        $k->{executions} = executions($id);
        $k;
    } @kinds;
}


sub still_so {
    my ($k, $when) = @_;

    my $r = ask_of($k, 1);
    my $name = "$when: $k->{what}";
    my $first = $k->{first};

    if ($k->{then} eq 'REPLAYED' && $k->{o}{later}) {
        is(told($r), "$first->{status} REPLAYED", "$name is replayed");

    } elsif ($k->{then} eq 'REPLAYED') {
        same_replayed($first, $r, "$name is replayed");

    } elsif ($k->{then} eq 'NEW') {
        is(told($r), "$first->{status} NEW", "$name is fresh");
        $k->{executions} += $k->{uri} =~ /dead/ ? 0 : 1;

    } else {
        is(told($r), "409 $k->{then}", "$name is not kept");
    }

    is(executions($k->{id}), $k->{executions}, '... and executed no more than that');

    # what it is bound to

    return if $k->{then} eq 'NEW' || !defined $k->{key} || exists $k->{o}{key};

    my %o = %{$k->{o}};
    my @mine = grep !/^Cookie/, @{$o{headers} // []};

    for ([ 'action', $k->{uri} . '&x=1', body => 'b' ],
         [ 'identity', $k->{uri}, body => 'b', headers => [ @mine, 'Cookie: me=2' ] ],
         [ 'body', $k->{uri}, body => 'c' ])
    {
        my ($reason, $uri, @more) = @$_;

        # what nobody bound is answered whoever asks
        next if $reason eq 'identity' && !grep /Cookie/, @{$o{headers} // []};

        $r = $n->sure($uri, key => $k->{key}, %o, @more);
        is(told($r) . ' ' . ($r->header('X-Reason') // ''), "409 CONFLICT $reason",
           "... bound: another $reason");
    }
}


# What the variables say is another thing each time.

sub same_replayed {
    my ($first, $again, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    for my $r ($first, $again) {
        $r->{lines} = [ grep !/^X-(?:Age|Expires|Fence|Reason|Pid):/, @{$r->{lines}} ];
    }

    return same_replay($first, $again, $name) if $first->{status} != 502;

    # nginx made the page
    return is(told($again) . $again->{body}, "502 REPLAYED$first->{body}", $name);
}


for my $mode (qw(strict batched)) {
    start_nginx($mode);

    my @all = make();

    for my $way (@ways) {
        settled();
        $ways{$way}->();
        still_so($_, "$mode, $way") for @all;
    }

    # all at once, of a worker each
    my @two = map { my $r = $n->sure('/x?id=none', key => 'none', body => 'b'); told($r) } 1, 2;
    is("@two", '200 NEW 200 REPLAYED', "$mode: a fresh one is one");
}


# --- what was not over -----------------------------------------------------------

# Whoever asks is told what nobody knows, or takes it over: one of them.

for my $mode (qw(strict batched)) {
    for my $way ('TERM', 'kill -9', 'USR2, kill -9') {
        start_nginx($mode);

        my $name = "$mode, $way";
        my ($c, $uri, @o) = owner($n, name('pending'), at => '/reject');
        my ($cr, $uri_r, @r) = owner($n, name('retried'), at => '/retry');
        my ($id, $id_r) = ($o[1], $r[1]);
        my ($before) = last_request($id_r) =~ /^X-Fence: (\d+)/m;

        settled();
        $ways{$way}->();

        for (1, 2) {
            my $r = $n->sure($uri, @o);
            is(told($r) . ' ' . problem($r), '409 IN_DOUBT in_doubt',
               "$name: what was pending is in doubt");
        }

        is(told($n->sure($uri, @o, body => 'c')), '409 CONFLICT', '... and bound');
        is(executions($id), 1, '... executed once');

        my @again = $n->racing(sub { map $n->start('POST', $uri_r, @r), 1 .. 5 },
                               count => 4);
        ok(until_true { executions($id_r) == 2 }, "$name, retry: it is taken over");
        is(scalar(grep { $_->readable } @again), 0, '... all wait for that');
        go($_) for $id, $id_r;

        my @got = map $_->response, @again;
        is(join(' ', sort map told($_), @got), '200 NEW' . ' 200 WAITED' x 4,
           '... and one of them has executed');
        is(executions($id_r), 2, '... once more, and not again');

        my ($new) = grep { told($_) eq '200 NEW' } @got;

        cmp_ok($new->header('X-Fence') // 0, '>', $before, '... with a higher fence');
        is(told($n->sure($uri_r, @r)), '200 REPLAYED', '... and this is recorded');
        $_->close for $c, $cr, @again;
    }

    # a stop that waits loses nothing

    start_nginx($mode);

    my ($c, $uri, @o) = owner($n, name('quit'));

    $n->strike('QUIT');
    go($o[1]);
    is(told($c->response), '200 NEW', "$mode: a stop waits for what is pending");
    ok(until_true { $n->gone }, '... and ends');
    $n->up;
    is(told($n->sure($uri, @o)), '200 REPLAYED', '... it is recorded');
    is(executions($o[1]), 1, '... executed once');
    $c->close;
}


# --- fences rise -------------------------------------------------------------------

for my $mode (qw(strict batched)) {
    start_nginx($mode);

    my $id = name('fence');
    my @fence;

    for my $way (@ways) {
        push @fence, order("/retry?close=1&id=$id", key => $id)->header('X-Fence');
        settled();
        $ways{$way}->();
    }

    is(join(' ', sort { $a <=> $b } @fence), "@fence", "$mode: fences rise");
    is(scalar(keys %{{ map { $_ => 1 } @fence }}), scalar @fence, '... each time');
}


# --- the window goes on --------------------------------------------------------------

for my $mode (qw(strict batched)) {
    for my $way (@ways) {
        start_nginx($mode) if $way eq 'QUIT';

        my ($uri, $alive, $seen, $expired);

        # a slow machine may need several tries to see it alive behind the restart

        for (1 .. 20) {
            my $id = name('brief');
            my $uri = "/brief?id=$id";
            my $before = time;

            order($uri, key => $id);
            my $after = time;

            order($uri, key => $id);
            settled();
            $ways{$way}->();

            ($seen, $alive) = (0, 0);

            while (1) {
                my $asked = time;
                my $r = order($uri, key => $id);

                if (told($r) ne '200 REPLAYED') {
                    is(told($r), '200 NEW', "$mode, $way: the window ends");
                    $expired = time - $before;
                    last;
                }

                $seen++;
                $alive = $asked - $after;
                my ($age, $left) = map $r->header("X-$_"), 'Age', 'Expires';

                # seconds: down, and up
                my $ago = $asked - $after;
                $expired = 9e9, last
                    if $age > time - $before + 0.05 || $age < $ago - 1.05
                       || $left > 2.05 - $ago + 1 || time - $before > patience();
                sleep 0.05;
            }

            last if $seen;
        }

        cmp_ok($seen, '>', 0, '... replayed until then');
        cmp_ok($alive, '<=', 2.05, '... no longer than it is, whoever asks');
        cmp_ok($expired, '>=', 1.95, '... no shorter');
        cmp_ok($expired, '<', 9e9, '... and age and end were told');
    }

    # it ends while nobody is there

    my $id = name('ended');

    order("/brief?id=$id", key => $id);
    my $long = name('long');
    order("/x?id=$long", key => $long);
    settled();
    $n->down('KILL');
    sleep 2.1;
    $n->up;
    is(told(order("/brief?id=$id", key => $id)), '200 NEW', "$mode: a window that ended while it was down");
    is(told(order("/x?id=$long", key => $long)), '200 REPLAYED', '... and one that did not');
}


# --- more tokens than the zone can hold ---------------------------------------------------

for my $mode (qw(strict batched)) {
    my $many = $mode eq 'strict' ? 1000 : 3000;

    start_nginx($mode, size => '128k', more => <<'EOC');
    location /many { idempotency_max_response 1k; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

    my ($c, $run) = (undef, name('many'));

    my $one = sub {
        my ($i) = @_;

        # refused, it says so, and what it cannot keep is not executed
        return until_true {
            $c = $n->connect if !$c || $c->{eof};
            my $r = ask($c, 'POST', "/many?id=$run&body=$run-$i", key => "$run-$i",
                        body => 'b')->response;

            # a connection that has had its thousand requests may be closed
            $r->{status} && $r->{status} != 503 && $r;
        };
    };

    my @told = map $one->($_), 1 .. $many;
    is(scalar(grep { told($_) ne '200 NEW' } @told), 0, "$mode: $many tokens in 128k");
    is(executions($run), $many, '... each executed');

    my $wrong = sub {
        my @wrong = map {
            my $r = $one->($_);
            told($r) eq '200 REPLAYED' && $r->{body} eq "$run-$_" ? () : "$_: " . told($r);
        } 1 .. $many;
        return join ' ', @wrong > 20 ? @wrong[0 .. 19] : @wrong;
    };

    is($wrong->(), '', '... each replayed, with its own response');

    for my $way ('kill -9', 'USR2') {
        undef $c;
        settled();
        $ways{$way}->();
        is($wrong->(), '', "... after $way as well");
        is(executions($run), $many, '... and none executed again');
    }

    undef $c;
}


# --- two generations beside each other ------------------------------------------------------

sub worker_of {
    my ($pid) = @_;

    local $n->{pid} = $pid;

    return ($n->workers)[0];
}


for my $mode (qw(strict batched)) {
    start_nginx($mode);
    my $before = name('before');
    order("/x?id=$before", key => $before);
    $n->upgrade;

    my %side = (older => worker_of($n->{older}), newer => worker_of($n->{pid}));
    my $on = sub {
        my ($side, @m) = @_;
        return ask(connection_to($n, $side{$side}), 'POST', @m);
    };

    # three who wait there: each generation has figures of its own
    my $wait = sub {
        my ($side, @m) = @_;
        return $n->racing(sub { map $on->($side, @m), 1 .. 3 },
                          by => connection_to($n, $side{$side}));
    };

    for (['older', 'newer'], ['newer', 'older']) {
        my ($one, $other) = @$_;
        my $name = "$mode: an owner in the $one generation, ";

        # waits

        my ($c, $uri, @o) = owner($n, name("$one-wait"), pid => $side{$one});
        my @w = $wait->($other, $uri, @o);

        is(told($on->($other, $uri, @o, body => 'c')->response), '409 CONFLICT',
           $name . 'the other one knows what it is bound to');
        is(scalar(grep { $_->readable } @w), 0, '... a repeat waits there');
        go($o[1]);

        my $first = $c->response;
        is(told($first), '200 NEW', '... until it ends');

        for (map $_->response, @w) {
            is(told($_), '200 WAITED', '... which it is told');
            same_replayed($first, $_, '... to the byte');
        }

        is(told($on->($_, $uri, @o)->response), '200 REPLAYED', "... and is replayed by the $_ one")
            for $one, $other;
        is(executions($o[1]), 1, '... executed once');
        $_->close for $c, @w;

        # refuses

        ($c, $uri, @o) = owner($n, name("$one-reject"), pid => $side{$one}, at => '/reject');
        is(told($on->($other, $uri, @o)->response), '409 IN_PROGRESS',
           $name . 'refused by the other');
        go($o[1]);
        is(told($c->response), '200 NEW', '... it ends');
        is(told($on->($other, $uri, @o)->response), '200 REPLAYED', '... and is replayed');
        $c->close;

        # released: one who waits there executes

        ($c, $uri, @o) = owner($n, name("$one-release"), pid => $side{$one},
                               more => '&h=X-Accel-Idempotency:%20release');
        @w = $wait->($other, $uri, @o);
        is(scalar(grep { $_->readable } @w), 0, $name . 'waited for');
        go($o[1]);
        is(told($c->response), '200 NEW', '... is released');

        my @end = map { my $w = $_; until_true { go($o[1]); $w->readable(0.05) }; $w->response } @w;
        is(join(' ', map told($_), @end) =~ s/WAITED|NEW/answered/gr,
           join(' ', ('200 answered') x 3), '... who waited is answered');
        $_->close for $c, @w;

        # many fresh ones, in both at once

        my @ids = map name("$one-both"), 1 .. 20;
        my @all = map { my $id = $_; map $on->($_, "/x?id=$id&delay=50", key => $id, body => 'b'),
                                         $one, $other } @ids;
        my %how;

        $how{told($_) =~ s/WAITED/REPLAYED/r}++ for gather(@all);
        is(join(', ', map "$how{$_} $_", sort keys %how), '20 200 NEW, 20 200 REPLAYED',
           $name . 'fresh ones in both');
        is(scalar(grep { executions($_) != 1 } @ids), 0, '... executed once');
        $_->close for @all;
    }

    # one of them is killed as a whole

    for my $retry ('', '/retry') {
        my ($c, $uri, @o) = owner($n, name('killed'), pid => $side{older}, at => $retry || '/x');
        my @w = $wait->('newer', $uri, @o);

        is(scalar(grep { $_->readable } @w), 0, "$mode: an owner in the older one$retry");
        $n->retire('KILL');

        if ($retry) {
            ok(until_true { executions($o[1]) == 2 }, '... is killed, and another takes over');
            go($o[1]);
            is(join(' ', sort map told($_->response), @w), '200 NEW 200 WAITED 200 WAITED',
               '... all get its outcome');

        } else {
            is(told($_->response), '409 IN_DOUBT', '... is killed, those who wait are told')
                for @w;
            go($o[1]);
        }

        is(executions($o[1]), $retry ? 2 : 1, '... executed no more');
        $_->close for $c, @w;

        $n->upgrade;
        %side = (older => worker_of($n->{older}), newer => worker_of($n->{pid}));
    }

    # the newer goes, the older goes on

    $n->withdraw('QUIT');
    is(told(order("/x?id=$before", key => $before)), '200 REPLAYED',
       "$mode: an upgrade that is taken back");
    my $id = name('back');
    is(told(order("/x?id=$id", key => $id), order("/x?id=$id", key => $id)), '200 NEW, 200 REPLAYED',
       '... the older goes on');
}


# --- another nginx on the same file ------------------------------------------------------------

# By mistake, or from another container. It is told while it is slow, not refused.

for my $mode (qw(strict batched)) {
    start_nginx($mode);

    my $m = outliving(workers => 2, allow => $died, http => crowd($common),
                      zone => with_state($mode, path => $n->root . '/z.db'));
    my @both = ($n, $m);

    my @ids = map name('both'), 1 .. 30;
    my @all = map { my $id = $_;
                    map { $_->start('POST', "/x?id=$id&delay=50", key => $id, body => 'b') }
                        rand() < 0.5 ? @both : reverse @both } @ids;
    my %how;

    $how{told($_) =~ s/WAITED/REPLAYED/r}++ for gather(@all);
    is(join(', ', map "$how{$_} $_", sort keys %how), '30 200 NEW, 30 200 REPLAYED',
       "$mode: two nginx on one file, fresh ones in both");
    is(scalar(grep { executions($_) != 1 } @ids), 0, '... executed once');
    $_->close for @all;

    # one dies

    my ($c, $uri, @o) = owner($m, name('other'), at => '/reject');

    is(told($n->sure($uri, @o)), '409 IN_PROGRESS', '... one knows what is pending in the other');

    my $from = length $n->log;

    $m->down('KILL');
    ok(until_true { told($n->sure($uri, @o)) eq '409 IN_DOUBT' }, '... which dies: in doubt');
    go($o[1]);
    is(executions($o[1]), 1, '... executed once');
    $c->close;

    # One that stands still holds up nobody; what it has claimed the other knows.

    my $known = name('known');
    is(told(order("/x?id=$known", key => $known)), '200 NEW', "$mode: one goes on");

    settled();
    kill STOP => $n->alive;
    $m->up;

    my $id = name('newcomer');
    is(told($m->sure("/x?id=$id", key => $id, body => 'b')), '200 NEW', '... a newcomer, too, while it is stopped');
    is(told($m->sure("/x?id=$known", key => $known, body => 'b')), '200 REPLAYED', '... and knows all');
    kill CONT => $n->alive;
    is(told(order("/x?id=$id", key => $id)), '200 REPLAYED', '... as does the other one then');
    is(executions($id), 1, '... executed once');

    kill STOP => $n->alive;
    $n->strike('KILL');
    $id = name('heir');
    ok(until_true { told($m->sure("/x?id=$id", key => $id, body => 'b')) =~ /^200/ },
       "$mode: it goes on when the other is killed");
    is(executions($id), 1, '... executed once');
    $m->stop;
}


# --- reload ------------------------------------------------------------------------------------

start_nginx('batched');

{
    my $id = name('reload');
    my @o = ("/x?id=$id", key => $id);

    is(told(order(@o)), '200 NEW', 'before a reload');

    for (['without its file', with_state('')],
         ['with another one', with_state('batched', path => '$TEST_NGINX_ROOT/other.db')])
    {
        my ($name, $zone) = @$_;
        my $from = length $n->log;

        $n->{allow} = qr/$died|\[emerg\].*"z"/;
        is($n->reload(zone => $zone), 0, "a reload $name is refused");

        my @said = substr($n->log, $from) =~ /\[emerg\] (.*)/g;

        is(scalar @said, 1, '... with one line') or diag @said;
        like($said[0] // '', qr/idempotency_zone "z".*state/, '... that says why');
        is(told(order(@o)), '200 REPLAYED', '... and nothing is lost');
    }

    ok(!-e $n->root . '/other.db', '... nor made');
    ok($n->reload(zone => with_state($_)), "a reload to $_"), is(told(order(@o)), '200 REPLAYED', '... knows it')
        for qw(strict batched);

    # a zone that comes with a file, and one that comes back to it

    my $more = 'location /y { idempotency zone=y; proxy_pass http://$TEST_NGINX_BACKEND; }';
    my @y = ("/y?id=$id-y", key => $id);

    ok($n->reload(zone => with_state('batched') . with_state('batched', name => 'y'),
                  http => crowd($common . $more)), 'a zone that comes with a file');
    is(told(order(@y), order(@y)), '200 NEW, 200 REPLAYED', '... works');
    ok($n->reload(zone => with_state('batched'), http => crowd($common)), '... and goes');

    my ($all, $now);
    until_true { $all = () = $n->alive; $now = () = $n->workers; $all == $now + 1 };
    ok($n->reload, '... for good');
    ok($n->reload(zone => with_state('batched') . with_state('batched', name => 'y'),
                  http => crowd($common . $more)), '... and comes back');
    is(told(order(@y)), '200 REPLAYED', '... knowing what it knew');
    is(executions("$id-y"), 1, '... executed once');
}

{
    start_nginx('');

    my $id = name('added');
    is(told(order("/x?id=$id", key => $id)), '200 NEW', 'a zone without a file');
    $n->{allow} = qr/$died|\[emerg\].*"z"/;
    is($n->reload(zone => with_state('batched')), 0, '... gets none by a reload');
    is(told(order("/x?id=$id", key => $id)), '200 REPLAYED', '... which loses nothing');
    ok(!-e $n->root . '/z.db', '... nor makes one');
}


# --- other settings after a restart ---------------------------------------------------------------

start_nginx('batched');

{
    my @ids = map name("settings$_"), 0 .. 2;

    order("/x?id=$_", key => $_) for @ids;
    settled();
    $n->restart('QUIT', http => crowd($common =~ s/(idempotency_ignore_fields) csrf/$1 csrf other/r
                                     . 'idempotency_window 48h;'));

    my $r = $n->sure("/x?id=$ids[0]", key => $ids[0], body => 'c');
    is(told($r) . ' ' . $r->header('X-Reason'), '409 CONFLICT body,settings',
       'a conflict after settings were changed says so');
    is(told(order("/x?id=$ids[0]", key => $ids[0])), '200 REPLAYED', '... the same request is one');

    $n->restart('QUIT', zone => with_state('strict', size => '1m'), workers => 1);
    is(told(order("/x?id=$ids[1]", key => $ids[1])), '200 REPLAYED',
       'another mode, a smaller zone, fewer workers');
    $n->restart('KILL', zone => with_state('batched', size => '32m'), workers => 3);
    is(told(order("/x?id=$ids[2]", key => $ids[2])), '200 REPLAYED', '... and larger ones');
    is(scalar(grep { executions($_) != 1 } @ids), 0, '... executed once');
}

$n->stop;

done_testing();
