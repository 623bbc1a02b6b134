#!/usr/bin/perl

# The upstream of the tests. It speaks HTTP/1.1 (keepalive), FastCGI, SCGI and
# uwsgi, and does what the query string of each request says; see BACKEND in
# Idempotency.pm.
#
# Started by Idempotency.pm with listening sockets and a life line (a pipe)
# as inherited descriptors: backend.pl LIFELINE http=FD fastcgi=FD ...
# It ends when the life line closes, that is, with the test.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use FindBin;
use lib $FindBin::Bin;
use Upstream;

my (%count, %last);
my $executions = 0;

my %parse = (http => \&parse_http, fastcgi => \&parse_fastcgi,
             scgi => \&parse_scgi, uwsgi => \&parse_uwsgi);

serve(shift(@ARGV), map {
    my ($proto, $fd) = /^(\w+)=(\d+)$/ or die "bad argument $_";

    [ $fd, sub {
        my ($c) = @_;

        @$c{qw(proto patient)} = ($proto, 1);
        my $req = $parse{$proto}->($c) or return;

        return plan($c, $req);
    } ];
} @ARGV);


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
        return answer($c, $req, go($id));
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
