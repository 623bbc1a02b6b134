# Issue 2: a zone's life across reloads. What is bound stays bound, old workers
# finish what they own, and a zone that cannot be kept stops the reload.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;


my $server = <<'EOC';
    idempotency zone=z;
    idempotency_in_progress reject;
    idempotency_wait_timeout 10m;

    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

my $zone = "idempotency_zone zone=z:256k;\n";

# for those who wait, see racing()
my $figures = "location /figures/ { idempotency off; idempotency_api; }\n";

sub order {
    my ($n, $id, %o) = @_;

    return told($n->post("/x?id=$id", key => $id, body => 'b', %o));
}


# Until no old worker is left.

sub alone {
    my ($n) = @_;

    my $pid = $n->pid;

    ok(until_true {
        open my $f, '<', "/proc/$pid/task/$pid/children" or return 0;
        my @all = split ' ', scalar(<$f>) // '';
        @all == $n->workers;
    }, '... the old workers have gone');
}


# --- nothing is lost ---------------------------------------------------------

{
    my $n = nginx(zone => 0, workers => 2, http => $zone, server => $server);

    is(order($n, 'kept'), '200 NEW', 'before a reload');
    my $first = $n->post('/x?id=kept', key => 'kept', body => 'b');

    ok($n->reload, 'a reload');
    is(order($n, 'kept'), '200 REPLAYED', '... what was bound is replayed');
    is(order($n, 'kept', body => 'c'), '409 CONFLICT', '... and bound');
    ok($n->reload, 'another one') for 1 .. 3;
    is(order($n, 'after'), '200 NEW', '... a new one is new');
    is(order($n, 'after'), '200 REPLAYED', '... and replayed');
    is(order($n, 'kept'), '200 REPLAYED', '... what was bound is replayed');
    is($n->post('/x?id=kept', key => 'kept', body => 'b')->{body},
       $first->{body}, '... with the same bytes');
    is(executions('kept'), 1, '... executed once');

    # a worker that finishes after the reload
    my $uri = '/x?id=old&gate=1';
    my @o = (key => 'old', body => 'b');
    my $c = $n->start('POST', $uri, @o);
    held('old');

    ok($n->reload, 'a reload while one is pending');
    is(told($n->post($uri, @o)), '409 IN_PROGRESS',
       '... a new worker knows of it');
    is(told($n->post($uri, @o, body => 'c')), '409 CONFLICT',
       '... and what it is');
    ok($n->reload, 'another reload');
    is(told($n->post($uri, @o)), '409 IN_PROGRESS', '... still');
    go('old');
    is(told($c->response), '200 NEW', 'the old worker finishes');
    $c->close;
    is(told($n->post($uri, @o)), '200 REPLAYED',
       '... and has recorded for the new ones');
    is(executions('old'), 1, '... executed once');

    # other settings, the same zone
    ok($n->reload(server => $server . "idempotency_window 48h;\n"
                                    . "idempotency_status conflict=422;\n"),
       'a reload with other settings');
    is(order($n, 'kept'), '200 REPLAYED', '... what was bound is replayed');
    is(order($n, 'kept', body => 'c'), '422 CONFLICT',
       '... under the new settings');

    unlike($n->log, qr/\[(?:warn|error|crit|alert|emerg)\](?!.* the state file "\S+" was made)/,
           'nothing to complain of');
}


# --- what cannot be kept -----------------------------------------------------

# The message, then: the old configuration lives on, with all that it knows.

for ([ larger => 'zone=z:512k', qr/size 524288.*262144/ ],
     [ smaller => 'zone=z:128k', qr/size 131072.*262144/ ],
     [ evict => 'zone=z:256k evict=responses', qr/evict/ ])
{
    my ($name, $zone_of, $why) = @$_;
    my $other = "idempotency_zone $zone_of;\n";

    my $n = nginx(zone => 0, http => $zone, server => $server,
                  allow => qr/\[emerg\].*"z"/);
    my @workers = $n->workers;

    is(order($n, 'before'), '200 NEW', "$name: before");

    my $from = length $n->log;

    is($n->reload(http => $other), 0, '... the reload is refused');

    my @said = substr($n->log, $from) =~ /\[emerg\] (.*)/g;
    is(scalar @said, 1, '... with one line') or diag @said;
    like($said[0] // '', qr/idempotency_zone "z"/, '... that names the zone');
    like($said[0] // '', $why, '... and the reason');

    is(order($n, 'before'), '200 REPLAYED', '... nothing is lost');
    is(order($n, "after-$name"), '200 NEW', '... and all works');
    is(order($n, "after-$name"), '200 REPLAYED', '... as before');
    is_deeply([ $n->workers ], \@workers, '... with the same workers');

    # nginx -t has no such zone to compare with
    my ($ok, $out) = config_test(zone => 0, http => $other, server => $server);
    ok($ok, '... which nginx -t cannot know') or diag $out;

    is($n->reload(http => $zone), 1, '... the first size again is welcome');
    is(order($n, 'before'), '200 REPLAYED', '... nothing is lost');
    $n->stop;

    # a restart takes what a reload cannot
    my $m = nginx(zone => 0, http => $other, server => $server);
    is(order($m, "restart-$name"), '200 NEW', '... a restart takes it');
    $m->stop;
}


# --- zones come and go -------------------------------------------------------

{
    my $n = nginx(zone => 0, http => $zone, server => $server);

    is(order($n, 'gone'), '200 NEW', 'a zone');
    is(order($n, 'gone'), '200 REPLAYED', '... that works');

    my $second = $zone . "idempotency_zone zone=y:128k;\n";
    my $both = $server . <<'EOC';
        location /y/ {
            idempotency zone=y;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
EOC
    my @y = ('/y/?id=y', key => 'y', body => 'b');

    ok($n->reload(http => $second, server => $both), 'a second zone');
    is(order($n, 'gone'), '200 REPLAYED', '... the first one is as it was');
    is(join(', ', map { told($n->post(@y)) } 1, 2), '200 NEW, 200 REPLAYED',
       '... and the second works');
    is(told($n->post('/y/?id=gone', key => 'gone')), '200 NEW',
       '... and has its own tokens');

    (my $off = $server) =~ s/idempotency zone=z;/idempotency off;/;

    ok($n->reload(http => '', server => $off), 'both are removed');
    is(order($n, 'gone'), '200 -', '... nothing is protected');

    ok($n->reload(http => $zone, server => $server), 'one is added again');
    is(order($n, 'gone'), '200 REPLAYED', '... it knows what it knew');

    ok($n->reload(http => '', server => $off), 'both are removed');
    alone($n);
    ok($n->reload, '... and nobody uses them any more');
    ok($n->reload(http => $zone, server => $server), 'one is added again');
    is(order($n, 'gone'), in_memory() ? '200 NEW' : '200 REPLAYED',
       '... it is new, but for its file');
    is(order($n, 'gone'), '200 REPLAYED', '... and works');

    # a zone that has gone may come back as anything
    ok($n->reload(http => '', server => $off), 'removed once more');
    alone($n);
    ok($n->reload(http => "idempotency_zone zone=z:512k evict=responses;\n",
                  server => $server), 'added with another size and meaning');
    is(order($n, 'gone'), in_memory() ? '200 NEW' : '200 REPLAYED',
       '... it is new, but for its file');
    is(order($n, 'gone'), '200 REPLAYED', '... and works');
    $n->stop;
}


# A pending one in a zone that is removed: its worker still has it.

{
    my $n = nginx(zone => 0, http => $zone, server => $server);
    my $c = $n->start('POST', '/x?id=last&gate=1', key => 'last', body => 'b');
    held('last');

    my ($old) = $n->workers;
    (my $off = $server) =~ s/idempotency zone=z;/idempotency off;/;

    ok($n->reload(http => '', server => $off), 'the zone of a pending one');
    go('last');
    is(told($c->response), '200 NEW', '... it ends as it began');
    $c->close;
    ok(until_true { !kill 0, $old }, '... and so does its worker');
    $n->stop;
}


# A zone that is left out by one reload, or by several, and brought back by the
# next, while an old worker executes: it is the same one.

for my $left_out (1, 3) {
    my $id = "left-out-$left_out";
    my @o = ("/x?id=$id&gate=1", key => $id, body => 'b');
    (my $on = $server) =~ s/in_progress reject/in_progress wait/;
    (my $off = $on) =~ s/idempotency zone=z;/idempotency off;/;

    $on .= $figures;

    my $n = nginx(zone => 0, http => $zone, server => $on,
                  allow => qr/\[emerg\].*"z"/);
    my $c = $n->start('POST', @o);
    held($id);

    ok($n->reload(http => '', server => $off), "$id: a zone is left out")
        for 1 .. $left_out;
    is(told($n->post('/x?id=free', key => $id)), '200 -',
       '... nothing is protected');

    # it is in use
    for my $other ('zone=z:512k', 'zone=z:256k evict=responses') {
        is($n->reload(http => "idempotency_zone $other;\n", server => $on), 0,
           "... it can't come back as $other");
    }

    ok($n->reload(http => $zone, server => $on), '... and brought back');

    my ($again) = $n->racing(sub { $n->start('POST', @o) });
    ok(!$again->readable, '... a repeat waits');
    is(executions($id), 1, '... and is not executed');
    go($id);
    is(told($c->response), '200 NEW', '... the old worker ends');
    is(told($again->response), '200 WAITED', '... which is told');
    is(executions($id), 1, '... executed once');
    $_->close for $c, $again;
    $n->stop;
}


# A zone that stays while nobody uses it: one reload takes away all that refers
# to it, the next one brings it back. What old workers own is theirs throughout.

for (['reject', ''], ['reject', 'idempotency_in_doubt retry;'],
     ['wait', ''], ['wait', 'idempotency_in_doubt retry;'])
{
    my ($how, $doubt) = @$_;
    my $name = "not used for a while, $how" . ($doubt && ', retry');

    (my $on = $server . $doubt) =~ s/in_progress reject/in_progress $how/;
    (my $off = $on) =~ s/idempotency zone=z;/idempotency off;/;

    $on .= $figures;

    my $n = nginx(zone => 0, workers => 4, http => $zone, server => $on);
    my @owned = map { "$how$_" . ($doubt && 'r') } 1 .. 6;
    my @o = map { [ "/x?id=$_&gate=1", key => $_, body => 'b' ] } @owned;
    my @c = map { $n->start('POST', @$_) } @o;
    held($_) for @owned;

    ok($n->reload(server => $off), "$name: a zone is left alone");
    # fewer processes: the places of the old ones come to be used again
    ok($n->reload(server => $on, workers => 1), '... and used again');

    my @again;

    if ($how eq 'reject') {
        is(told($n->post(@$_)), '409 IN_PROGRESS', "... $_->[2] is pending")
            for @o;
        is(told($n->post(@$_, body => 'c')), '409 CONFLICT', '... and bound')
            for @o;

    } else {
        @again = $n->racing(sub { map { $n->start('POST', @$_) } @o });
        is(scalar(grep { $_->readable } @again), 0, '... repeats wait');
    }

    is(executions($_), 1, "... $_ was not executed again") for @owned;

    go($_) for @owned;
    is(told($_->response), '200 NEW', '... an old worker ends') for @c;
    is(told($_->response), '200 WAITED', '... and wakes a new one') for @again;
    is(told($n->post(@$_)), '200 REPLAYED', '... replayed') for @o;
    is(executions($_), 1, '... executed once') for @owned;

    $_->close for @c, @again;
    $n->stop;
}

# ... and of one that dies meanwhile it is known.

for (['', '409 IN_DOUBT', 1], ['idempotency_in_doubt retry;', '200 NEW', 2]) {
    my ($doubt, $then, $count) = @$_;
    my $id = $doubt ? 'dead-retry' : 'dead';

    my $on = $server . $doubt;
    (my $off = $on) =~ s/idempotency zone=z;/idempotency off;/;

    my $n = nginx(zone => 0, http => $zone, server => $on,
                  allow => qr/exited on signal 9/);
    my @o = ("/x?id=$id&gate=1", key => $id, body => 'b');
    my ($owner) = $n->workers;
    my $c = $n->start('POST', @o);
    held($id);

    ok($n->reload(server => $off), 'a zone is left alone');
    kill KILL => $owner;
    ok($n->wait_log(qr/$owner exited on signal 9/), '... its owner dies');
    ok($n->reload(server => $on), '... and it is used again');

    my $told;
    ok(until_true {
        my $again = $n->start('POST', @o);

        until_true { go($id); $again->readable(0.1) };
        $told = told($again->response);
        $again->close;

        return $told ne '409 IN_PROGRESS';
    }, '... the claim of the dead is not pending for ever');
    is($told, $then, '... nobody knows its fate');
    is(executions($id), $count, "... executed $count times");

    $c->close;
    $n->stop;
}


# A graceful stop.

{
    my $n = nginx(zone => 0, http => $zone, server => $server);
    my $c = $n->start('POST', '/x?id=quit&gate=1', key => 'quit', body => 'b');
    held('quit');
    $n->signal('QUIT');
    go('quit');
    is(told($c->response), '200 NEW', 'a graceful stop loses no response');
    $c->close;
    ok($n->stop('QUIT'), '... and ends');
}


# After a reload a conflict may come of settings that make another fingerprint of
# the same request: it says so.

{
    my %was = (zone => 0, http => <<'EOC');
        idempotency_zone zone=z:256k;
        add_header X-Status "$idempotency_status $idempotency_reason" always;
        map $http_x_who $who { default $http_x_who; }
EOC

    my $with = sub {
        return (%was, server => "idempotency zone=z; $_[0]\n" . <<'EOC');
            location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC
    };
    my $n = nginx($with->(''));
    my $r = 0;

    my $ask = sub {
        my ($id, $body) = @_;

        return told($n->post("/?id=$id", key => $id, body => $body // 'a=1',
                             type => 'application/x-www-form-urlencoded',
                             headers => [ 'Cookie: s=1', 'X-Who: me' ]))
               =~ s/ $//r;
    };

    for ([ 'body', '' ],
         [ 'body,settings', 'idempotency_normalize off;', 'body,settings' ],
         [ 'body,settings', 'idempotency_normalize_buffer 2m;' ],
         [ 'body,settings', 'idempotency_ignore_fields x;' ],
         [ 'body,settings', 'idempotency_ignore_cookies x;' ],
         [ 'body,settings', 'idempotency_ignore_cookies off;' ],
         [ 'body,settings', 'idempotency_key $http_idempotency_key $http_x_order_token;' ],
         [ 'body', 'idempotency_key $http_idempotency_key $http_x_order;' ],
         [ 'identity,body,settings', 'idempotency_identity $who;',
           'identity,settings' ],
         [ 'action,body,settings', 'idempotency_bind $http_x_no;',
           'action,settings' ],
         [ 'body', 'idempotency_window 1h; idempotency_lease 2m;'
                   . ' idempotency_max_response 1k; idempotency_methods POST PUT;'
                   . ' idempotency_log_level warn;' ])
    {
        my ($reason, $lines, $again) = @$_;

        my $id = 'r' . ++$r;

        is($ask->($id), '200 NEW', "bound, and then: $lines");
        $n->reload($with->($lines));
        is($ask->($id, 'a=2'), "409 CONFLICT $reason", '... another body');
        is($ask->($id), $again ? "409 CONFLICT $again" : '200 REPLAYED',
           '... the same request');
        $n->reload($with->(''));
    }

    # one value more or less, or in another directive, is another setting

    my @sets = ('', 'idempotency_ignore_fields a b;', 'idempotency_ignore_fields ab;',
                'idempotency_ignore_fields a; idempotency_bind $http_b;',
                'idempotency_bind $http_a$http_b;',
                'idempotency_bind $http_a $http_b;');

    for my $i (0 .. $#sets) {
        $n->reload($with->($sets[$i]));
        is($ask->("set$i"), '200 NEW', "bound with $sets[$i]");
        is(join(' ', map { $ask->("set$_", 'a=2') =~ /settings/ ? 1 : 0 } 0 .. $i),
           join(' ', (1) x $i, 0), '... only these settings are the same');
    }

    $n->reload($with->(''));
    is($ask->('set0', 'a=2'), '409 CONFLICT body', 'the first settings again');
    $n->stop;
}

done_testing();
