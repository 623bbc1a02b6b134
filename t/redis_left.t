#!/usr/bin/perl

# A claim whose connection is lost is sent again. The first one may come yet: what it
# leaves is given back, unless it is its owner's.

use lib 't/lib';
use Idempotency;
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use Redis;
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(sleep time);

plan(skip_all => 'no redis-server') if !Redis->programs;

my $redis = Redis->new;
my $dir = File::Temp->newdir('left-XXXXXX', TMPDIR => 1);
# not a look at the token of zeros, which asks whether the server is back
my $claim = qr/\r\n(idem:z:(?!A{43})[\w-]{43})\r\n/;
my $between = between($redis);

my ($a, $b) = map nginx(zone => 0, http => <<"EOC", server => <<'EOS'), "127.0.0.1:$between", 'unix:' . $redis->path;
    idempotency_redis r { server $_; timeout 6s; }
    idempotency_zone zone=z:4m redis=r;
EOC
    location /api/ { idempotency_api; }
    location / {
        idempotency zone=z;
        idempotency_lease 1h;
        idempotency_in_progress reject;
        add_header X-Status $idempotency_status always;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOS

my $refused = '&status=503&h=Retry-After:%201';
my $n = 0;


# What another one has: he gives it back, and then the first copy comes.

{
    my ($key) = comes_yet(sub {
        my ($id) = @_;

        my $owner = $b->start('POST', "/?id=$id&gate=1$refused", key => $id, body => 'b');
        held($id);

        is(told($a->post("/?id=$id&gate=1$refused", key => $id, body => 'b')), '409 IN_PROGRESS',
           'sent again: another one has it');

        go($id);
        is(told($owner->response), '503 NEW', '... and gives it back');
    }, 1);

    ok(until_true { !state_of($key) }, '... is given back');
}

# What it was granted, and has given back itself.

{
    my ($key) = comes_yet(sub {
        my ($id) = @_;

        is(told($a->post("/?id=$id$refused", key => $id, body => 'b')), '503 NEW',
           'sent again: executed, and given back');
    }, 1);

    ok(until_true { !state_of($key) }, '... is given back once more');
}

# What it has.

{
    my $owner;
    my ($key, $id) = comes_yet(sub {
        my ($id) = @_;

        $owner = $a->start('POST', "/?id=$id&gate=1", key => $id, body => 'b');
        held($id);
    });

    # nothing of it can come any more
    sleep 7;

    is(state_of($key), 'P', 'sent again: what is executed is kept');
    go($id);
    is(told($owner->response), '200 NEW', '... until it is done');
    until_true { state_of($key) eq 'D' };
    is(told($b->post("/?id=$id&gate=1", key => $id, body => 'b')), '200 REPLAYED', '... for all');
    is(executions($id), 1, '... once');
}

$_->stop for $a, $b;
done_testing();


# The key and the id of a token that A has claimed twice: first by a connection that
# is lost, and which is heard only when something has happened, and, maybe, the key is
# gone. On a slow machine that may be too late, and then it is done again.

sub comes_yet {
    my ($happens, $gone) = @_;

    # what is told behind an answer is not the claim that is to be held

    until_true { told($a->post('/?id=warm' . ++$n, key => "warm$n", body => 'b')) eq '200 NEW' };
    until_true { $a->get('/api/zones/z')->{body} =~ /"undelivered":0\b/ } or die 'outcomes are not told';

    while (1) {
        my $id = 'left' . ++$n;

        say_so('hold');
        $happens->($id);

        my ($key) = slurp("$dir/held") =~ $claim;
        until_true { !state_of($key) } or die "$key stays" if $gone;

        say_so('deliver');
        until_true { -e "$dir/answer" } or die 'no answer';

        my $came = slurp("$dir/answer") =~ /^C\r$/m;
        unlink map "$dir/$_", qw(held deliver answer);

        if ($came) {
            is(state_of($key), 'P', '... what was sent first comes yet');
            return ($key, $id);
        }

        go($id) if !$gone;
    }
}


# ... but what remains for a minute, so that the next claim's fence is higher
sub state_of { return ($redis->command('GETRANGE', $_[0], 2, 2) // '') =~ s/R//r }

sub say_so {
    open my $f, '>', "$dir/$_[0]~" or die "$dir/$_[0]: $!";
    print $f $_[1] // '';
    close $f;
    rename "$dir/$_[0]~", "$dir/$_[0]";
}


# Hands on what it reads. If it is to hold a claim, it closes the connection which that
# came by as if that were broken, and hands it on later.

sub between {
    my ($of) = @_;

    my $listen = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die "listen: $!";

    child(sub {
        my (%peer, $held);
        my $select = IO::Select->new($listen);

        while (1) {
            for my $s ($select->can_read(0.01)) {

                if ($s == $listen) {
                    my $c = $listen->accept or next;
                    my $u = IO::Socket::UNIX->new(Peer => $of->path) or next;

                    @peer{$c, $u} = ($u, $c);
                    $select->add($c, $u);
                    next;
                }

                my $to = $peer{$s};
                my $read = sysread $s, my $data, 1 << 20;

                if ($held && $s == $held->{to}) {
                    say_so('answer', $data);
                    $select->remove($s);
                    $held = undef;

                } elsif (!$read) {
                    $select->remove($s, $to);
                    delete @peer{$s, $to};
                    close $_ for $s, $to;

                } elsif ($data =~ $claim && -e "$dir/hold") {
                    unlink "$dir/hold";
                    $held = { to => $to, data => $data };
                    $select->remove($s);
                    setsockopt $s, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0);
                    delete @peer{$s, $to};
                    close $s;
                    say_so('held', $data);

                } else {
                    syswrite $to, $data;
                }
            }

            if ($held && defined $held->{data} && -e "$dir/deliver") {
                syswrite $held->{to}, delete $held->{data};
            }
        }
    });

    return $listen->sockport;
}
