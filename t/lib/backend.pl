#!/usr/bin/perl

# The upstream of the tests: one process, one select loop, core Perl only.
# It speaks HTTP/1.1 (keepalive), FastCGI, SCGI and uwsgi and does what the
# query string of each request says; see BACKEND in Idempotency.pm.
#
# Started by Idempotency.pm with listening sockets and a life line (a pipe)
# as inherited descriptors: backend.pl LIFELINE http=FD fastcgi=FD ...
# It ends when the life line closes, that is, with the test.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use Errno qw(EAGAIN EWOULDBLOCK EINTR);
use IO::Handle;
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

$SIG{PIPE} = 'IGNORE';

my (%listen, %conn, %count, %last, %held);
my $executions = 0;

my $life = IO::Handle->new_from_fd(shift(@ARGV), 'r') or die "life line: $!";

for (@ARGV) {
    my ($proto, $fd) = /^(\w+)=(\d+)$/ or die "bad argument $_";
    my $s = IO::Socket::INET->new_from_fd($fd, 'r+') or die "$_: $!";
    $s->blocking(0);
    $listen{fileno $s} = [$s, $proto];
}

my %parse = (http => \&parse_http, fastcgi => \&parse_fastcgi,
             scgi => \&parse_scgi, uwsgi => \&parse_uwsgi);


while (1) {
    my ($r, $w, $timeout, $now) = ('', '', undef, time);

    vec($r, fileno $life, 1) = 1;
    vec($r, $_, 1) = 1 for keys %listen;

    for my $c (my @all = values %conn) {
        vec($r, $c->{fd}, 1) = 1 unless $c->{eof};
        vec($w, $c->{fd}, 1) = 1 if length $c->{out};

        if (defined $c->{wake}) {
            my $t = $c->{wake} > $now ? $c->{wake} - $now : 0;
            $timeout = $t if !defined $timeout || $t < $timeout;
        }
    }

    next if select($r, $w, undef, $timeout) < 0;

    last if vec($r, fileno $life, 1);

    for my $l (values %listen) {
        next unless vec($r, fileno $l->[0], 1);

        while (my $s = $l->[0]->accept) {
            $s->blocking(0);
            setsockopt($s, IPPROTO_TCP, TCP_NODELAY, 1);
            $conn{fileno $s} = { fd => fileno $s, sock => $s, proto => $l->[1],
                                 in => '', out => '', queue => [] };
        }
    }

    $now = time;

    for my $c (my @all = values %conn) {
        receive($c) if vec($r, $c->{fd}, 1);

        if (defined $c->{wake} && $c->{wake} <= $now) {
            delete $c->{wake};
            step($c);
        }

        flush_out($c) if $conn{$c->{fd}} && length $c->{out};
    }
}


sub receive {
    my ($c) = @_;

    my $n = sysread $c->{sock}, $c->{in}, 65536, length $c->{in};

    if (!defined $n) {
        return if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
        return drop($c);
    }

    if ($n == 0) {
        # nginx went away: nothing is left to do, unless a gate holds it (the
        # gate's count must not change under the test's eyes)
        $c->{eof} = 1;
        return drop($c) unless @{$c->{queue}};
    }

    step($c);
}


sub flush_out {
    my ($c) = @_;

    while (length $c->{out}) {
        my $n = syswrite $c->{sock}, $c->{out}, 65536;

        if (!defined $n) {
            return if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
            return drop($c);
        }

        substr($c->{out}, 0, $n) = '';
    }

    step($c);
}


sub drop {
    my ($c, $rst) = @_;

    setsockopt($c->{sock}, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0) if $rst;

    delete $conn{$c->{fd}};
    delete $held{$_}{$c->{fd}} for keys %held;
    close $c->{sock};
    wake_waiters();
}


# Performs the queued actions of a connection until one has to wait.

sub step {
    my ($c) = @_;

    return unless $conn{$c->{fd}};
    return if defined $c->{wake} || defined $c->{gate};

    while (1) {
        my $a = shift @{$c->{queue}};

        if (!$a) {
            my $req = $parse{$c->{proto}}->($c) or return;
            push @{$c->{queue}}, plan($c, $req);
            next;
        }

        my ($do, $arg, $more) = @$a;

        if ($do eq 'write') {
            $c->{out} .= $arg;

        } elsif (length $c->{out}) {
            # everything below acts on what the peer has been sent
            unshift @{$c->{queue}}, $a;
            return flush_out($c);

        } elsif ($do eq 'delay') {
            $c->{wake} = time + $arg;
            return;

        } elsif ($do eq 'gate') {
            $c->{gate} = $arg;
            $held{$arg}{$c->{fd}} = $c;
            wake_waiters();
            return;

        } elsif ($do eq 'held') {
            if (keys %{$held{$arg} || {}} < $more) {
                $c->{waiting} = 1;
                unshift @{$c->{queue}}, $a;
                return;
            }

            delete $c->{waiting};

        } elsif ($do eq 'close') {
            return drop($c);

        } elsif ($do eq 'rst') {
            return drop($c, 1);
        }
    }
}


sub wake_waiters {
    for my $c (my @all = values %conn) {
        next unless $c->{waiting};
        step($c);
        flush_out($c) if $conn{$c->{fd}};
    }
}


# --- what to do -------------------------------------------------------------

sub plan {
    my ($c, $req) = @_;

    my ($path, $query) = split /\?/, $req->{uri}, 2;
    my %q;

    for (split /&/, $query // '') {
        my ($k, $v) = split /=/, $_, 2;
        $v //= '';
        s/%([0-9a-fA-F]{2})/chr hex $1/ge for $k, $v;
        push @{$q{$k}}, $v;
    }

    my $arg = sub { $q{$_[0]} ? $q{$_[0]}[-1] : $_[1] };
    my $id = $arg->(id => $path);

    # questions about the backend, not counted

    if ($path eq '/count') {
        return answer($c, $req, $q{id} ? $count{$id} // 0 : $executions);
    }

    if ($path eq '/last') {
        return answer($c, $req, $last{$id} // '');
    }

    if ($path eq '/held') {
        return (['held', $id, $arg->(n => 1)],
                answer($c, $req, $arg->(n => 1)));
    }

    if ($path eq '/go') {
        my @c = values %{delete $held{$id} || {}};

        for my $h (@c) {
            delete $h->{gate};
            step($h);
            flush_out($h) if $conn{$h->{fd}};
        }

        return answer($c, $req, scalar @c);
    }

    # an execution

    my $exec = ++$count{$id};
    $executions++;

    my $seen = join '', "$req->{method} $req->{uri} $req->{version}\n",
                        map({ "$_\n" } @{$req->{lines}}), "\n", $req->{body};
    $last{$id} = $seen;

    return ['close'] if $arg->('close');

    my $body = defined $q{body} ? $arg->('body')
             : defined $q{size} ? pattern($arg->('size'), $exec)
             : $arg->('echo')   ? $seen
             : $arg->('sha')    ? sha256_hex($req->{body}) . ' '
                                  . length($req->{body}) . "\n"
             : "exec=$exec id=$id\n";

    my $status = $arg->(status => 200);
    my $bodyless = $status =~ /^(?:204|304)$/;
    my $te = $arg->(te => 'cl');
    my @h = @{$q{h} || []};

    $te = 'close' if $te eq 'chunked' && $c->{proto} ne 'http';

    push @h, 'Content-Type: ' . $arg->(ct => 'text/plain')
        unless $bodyless || $arg->('noct') || grep /^Content-Type:/i, @h;
    push @h, "X-Exec: $exec" unless $arg->('noexec');
    push @h, 'Content-Length: ' . length $body if $te eq 'cl' && !$bodyless;
    push @h, 'Transfer-Encoding: chunked' if $te eq 'chunked';

    my $close = $te eq 'close' && !$bodyless || $arg->('cut')
                || $c->{proto} ne 'http' || $req->{close};

    push @h, 'Connection: close' if $close && $c->{proto} eq 'http';

    my $reason = $arg->(reason => { 200 => 'OK', 201 => 'Created',
                                    204 => 'No Content', 303 => 'See Other',
                                    304 => 'Not Modified' }->{$status}
                                  // 'Status');
    my $first = $c->{proto} =~ /^http|uwsgi$/
                ? "HTTP/1.1 $status $reason" : "Status: $status $reason";

    my $early = '';

    for (@{$q{early} || []}) {
        my ($code, $line) = split / /, $_, 2;
        $early .= "HTTP/1.1 $code Early\r\n"
                  . ($line ? "$line\r\n" : '') . "\r\n";
    }

    my $head = join "\r\n", $first, @h, '', '';

    $head = '', $body = $arg->('raw') if defined $q{raw};

    my $rest = '';

    if ($te eq 'chunked' && !$bodyless) {
        $rest = "0\r\n" . join('', map { "$_\r\n" } @{$q{trailer} || []})
                . "\r\n";
    }

    my $frame = sub {
        my ($data) = @_;

        return '' if $data eq '' || $bodyless;
        return sprintf("%x\r\n%s\r\n", length $data, $data)
            if $te eq 'chunked';
        return $data;
    };

    my @do;
    my $gate = $arg->(gate => '');
    my $put = sub {
        push @do, ['write', $c->{wrap}->($_[0])] if length $_[0];
    };

    $put->($early);
    push @do, ['delay', $arg->('delay') / 1000] if $arg->('delay');
    push @do, ['gate', $id] if $gate && $gate ne 'body';

    return (@do, ['rst']) if $arg->('rst') && !defined $q{cut};

    if (defined $q{cut}) {
        $put->($head . $frame->(substr $body, 0, $arg->('cut')));
        # so that the peer reads what was sent before the reset arrives
        push @do, ['delay', 0.1] if $arg->('rst');
        return (@do, [$arg->('rst') ? 'rst' : 'close']);
    }

    if ($arg->('bdelay') || $gate eq 'body') {
        my $half = int(length($body) / 2);

        $put->($head . $frame->(substr $body, 0, $half));
        push @do, ['delay', $arg->('bdelay') / 1000] if $arg->('bdelay');
        push @do, ['gate', $id] if $gate eq 'body';
        $put->($frame->(substr $body, $half) . $rest);

    } else {
        $put->($head . $frame->($body) . $rest);
    }

    push @do, ['write', $c->{end}] if length $c->{end};
    push @do, ['close'] if $close || defined $q{raw};

    return @do;
}


sub answer {
    my ($c, $req, $text) = @_;

    return (['write', "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                      . "Content-Length: " . length($text) . "\r\n"
                      . ($req->{close} ? "Connection: close\r\n" : '')
                      . "\r\n$text"],
            $req->{close} ? ['close'] : ());
}


# Binary, of any length, different in each byte for each execution.

sub pattern {
    my ($size, $exec) = @_;

    my $block = join '', map { chr(($_ * 167 + $exec * 59) & 255) } 0 .. 255;

    return substr $block x (1 + $size / 256), 0, $size;
}


# --- protocols: each takes one whole request off $c->{in} -------------------

sub parse_http {
    my ($c) = @_;

    $c->{in} =~ /\G(.*?\r\n)\r\n/s or return;

    my ($head, $at) = ($1, $+[0]);
    my ($first, @lines) = split /\r\n/, $head;
    my ($method, $uri, $version) = split / /, $first;

    my ($length) = $head =~ /^Content-Length: *(\d+)/mi;
    my $body = '';

    if ($head =~ /^Transfer-Encoding: *chunked/mi) {
        pos($c->{in}) = $at;

        while (1) {
            $c->{in} =~ /\G([0-9a-f]+)[^\n]*\n/gci or return;
            my $n = hex $1;

            if ($n == 0) {
                $c->{in} =~ /\G(?:[^\r\n]+\r\n)*\r\n/gc or return;
                $at = pos $c->{in};
                last;
            }

            return if length($c->{in}) < pos($c->{in}) + $n + 2;
            $body .= substr $c->{in}, pos $c->{in}, $n;
            pos($c->{in}) += $n + 2;
        }

    } elsif ($length) {
        return if length($c->{in}) < $at + $length;
        $body = substr $c->{in}, $at, $length;
        $at += $length;
    }

    substr($c->{in}, 0, $at) = '';
    $c->{wrap} = sub { $_[0] };
    $c->{end} = '';

    return { method => $method, uri => $uri, version => $version // '',
             lines => \@lines, body => $body,
             close => scalar(($version // '') eq 'HTTP/1.0'
                             && $head !~ /^Connection: *keep-alive/mi
                             || $head =~ /^Connection: *close/mi) };
}


sub cgi {
    my ($vars, $body) = @_;

    return { method => $vars->{REQUEST_METHOD}, uri => $vars->{REQUEST_URI},
             version => 'CGI', body => $body, close => 1,
             lines => [map { "$_: $vars->{$_}" } sort keys %$vars] };
}


sub parse_fastcgi {
    my ($c) = @_;

    my ($params, $body, $at, $id) = ('', '', 0);

    while (1) {
        return if length($c->{in}) < $at + 8;

        my (undef, $type, $rid, $n, $pad) = unpack 'CCnnC',
                                                   substr $c->{in}, $at, 8;

        return if length($c->{in}) < $at + 8 + $n + $pad;

        my $data = substr $c->{in}, $at + 8, $n;
        $at += 8 + $n + $pad;
        $id = $rid;

        $params .= $data if $type == 4;
        $body .= $data if $type == 5;
        last if $type == 5 && $n == 0;
    }

    substr($c->{in}, 0, $at) = '';

    my (%vars, @l);

    while (length $params) {
        for (0, 1) {
            $l[$_] = ord($params) < 128 ? unpack 'C', substr $params, 0, 1, ''
                     : 0x7fffffff & unpack 'N', substr $params, 0, 4, '';
        }

        my $k = substr $params, 0, $l[0], '';
        $vars{$k} = substr $params, 0, $l[1], '';
    }

    $c->{wrap} = sub {
        my ($data, $out) = (shift, '');

        while (length $data) {
            my $part = substr $data, 0, 32000, '';
            $out .= pack('CCnnCC', 1, 6, $id, length $part, 0, 0) . $part;
        }

        return $out;
    };
    $c->{end} = pack('CCnnCC', 1, 6, $id, 0, 0, 0)
                . pack('CCnnCC NCx3', 1, 3, $id, 8, 0, 0, 0, 0);

    return cgi(\%vars, $body);
}


sub parse_scgi {
    my ($c) = @_;

    $c->{in} =~ /^(\d+):/ or return;

    my ($at, $n) = ($+[0], $1);

    return if length($c->{in}) < $at + $n + 1;

    my %vars = substr($c->{in}, $at, $n) =~ /([^\0]*)\0([^\0]*)\0/g;
    my $length = $vars{CONTENT_LENGTH} || 0;

    return if length($c->{in}) < $at + $n + 1 + $length;

    my $body = substr $c->{in}, $at + $n + 1, $length;
    $c->{in} = '';
    $c->{wrap} = sub { $_[0] };
    $c->{end} = '';

    return cgi(\%vars, $body);
}


sub parse_uwsgi {
    my ($c) = @_;

    return if length $c->{in} < 4;

    my (undef, $n) = unpack 'CvC', $c->{in};

    return if length($c->{in}) < 4 + $n;

    my %vars = unpack '(v/a)*', substr $c->{in}, 4, $n;
    my $length = $vars{CONTENT_LENGTH} || 0;

    return if length($c->{in}) < 4 + $n + $length;

    my $body = substr $c->{in}, 4 + $n, $length;
    $c->{in} = '';
    $c->{wrap} = sub { $_[0] };
    $c->{end} = '';

    return cgi(\%vars, $body);
}
