#!/usr/bin/perl

# The upstream of the stress test: it counts executions per token, and each of
# them ends in its own way, by a seed.
#
#     backend.pl SEED LISTENING-DESCRIPTOR LIFELINE-DESCRIPTOR
#
# GET /report answers with a line for each execution that runs, or has ended
# since the last report:
#
#     TOKEN EXECUTION WORKER HOW STATUS VARIANT BEGUN ENDED
#
# HOW: answer; large (over the limit); release (says that it did not execute);
# close, reset, hang, garbage (no whole header); cut (a part of the body); torn
# (likewise, but a reset follows, which may overtake it).
# Any other GET answers "fill" and as many bytes as its ?size.

use strict;
use warnings;

use Digest::SHA qw(sha256);
use FindBin;
use lib "$FindBin::Bin/../lib";
use Time::HiRes qw(time);
use Upstream;

my ($seed, $fd, $life) = @ARGV;
my (%count, @executions);

serve($life, [ $fd, \&next_request ]);


sub next_request {
    my ($c) = @_;

    $c->{in} =~ /^(.*?\r\n)\r\n/s or return;

    my ($head, $at) = ($1, $+[0]);
    my $length = $head =~ /^Content-Length: (\d+)/mi ? $1 : 0;

    return if length $c->{in} < $at + $length;

    my $body = substr $c->{in}, $at, $length;
    substr $c->{in}, 0, $at + $length, '';

    my ($method, $uri) = split / /, $head;

    return report() if $uri eq '/report';
    return plain('fill' . 'x' x ($uri =~ /size=(\d+)/ ? $1 : 0))
        if $method eq 'GET' || $uri =~ /^\/fill/;

    my ($token) = $uri =~ /\bid=([^&]+)/;
    my ($worker) = $head =~ /^X-Worker: (\d+)/mi;
    my ($variant) = $body =~ /\bvariant=(\d+)/;

    return execute($c, $token, $worker, $variant // 0);
}


sub report {
    my $text = join '', map { "@$_\n" } @executions;

    @executions = grep { !$_->[7] } @executions;

    return plain($text);
}


sub plain {
    my ($text) = @_;

    return ['write', "HTTP/1.1 200 OK\r\nContent-Length: " . length($text)
                     . "\r\n\r\n$text"];
}


sub execute {
    my ($c, $token, $worker, $variant) = @_;

    my $n = ++$count{$token};

    # The same for a seed, a token and the number of its execution.
    srand unpack 'N', sha256("$seed $token $n");

    my $dice = rand 100;
    my $how = $dice < 79 ? 'answer'
            : $dice < 81 ? 'large'
            : $dice < 87 ? 'release'
            : $dice < 90 ? 'close'
            : $dice < 93 ? 'reset'
            : $dice < 94 ? 'hang'
            : $dice < 96 ? 'garbage'
            : $dice < 98 ? 'cut'
            :              'torn';
    my $status = (200, 200, 200, 201, 422, 500)[rand 6];
    my $size = $how eq 'large'     ? 70000 + int rand 60000
             : rand() < 0.85       ? int rand 900
             : rand() < 0.9        ? int rand 20000
             :                       int rand 60000;
    my $chunked = rand() < 0.3;
    my $delay = rand() < 0.1 ? rand 0.8 : rand() < 0.5 ? rand 0.12 : 0;
    my $half = rand() < 0.1 ? rand 0.3 : 0;

    $size = 2000 + int rand 30000 if $how =~ /^(?:cut|torn)$/;

    my $e = [$token, $n, $worker // 0, $how, $status, $variant, time, 0];
    push @executions, $e;
    $c->{ended} = sub { $e->[7] = time };

    my @do = $delay ? ['delay', $delay] : ();

    return (@do, ['close']) if $how eq 'close';
    return (@do, ['rst']) if $how eq 'reset';
    return (['delay', 60]) if $how eq 'hang';
    return (@do, ['write', "HTTP/1.1 200 OK\r\n\x01bad: header\r\n\r\n"],
            ['close']) if $how eq 'garbage';

    my $body = "token=$token execution=$n variant=$variant ";
    $body .= substr +("$token/$n " x (1 + $size / (3 + length $token))), 0, $size;

    my $head = "HTTP/1.1 $status Made\r\nContent-Type: text/plain\r\n"
               . "X-Exec: $n\r\nX-Variant: $variant\r\n"
               . "X-Multi: one $n\r\nETag: \"$token-$n\"\r\nX-Multi: two\r\n"
               . ($how eq 'release' ? "X-Accel-Idempotency: release\r\n" : '')
               . ($chunked ? "Transfer-Encoding: chunked\r\n"
                           : 'Content-Length: ' . length($body) . "\r\n")
               . "\r\n";

    my $frame = sub {
        my ($data) = @_;
        return $chunked ? sprintf("%x\r\n%s\r\n", length $data, $data) : $data;
    };

    return (@do, ['write', $head . $frame->(substr $body, 0, 1000)],
            $half ? ['delay', $half] : (),
            [$how eq 'cut' ? 'close' : 'rst'])
        if $how =~ /^(?:cut|torn)$/;

    my $middle = $half ? int(length($body) / 2) : length $body;

    return (@do, ['write', $head . $frame->(substr $body, 0, $middle)],
            $half ? (['delay', $half], ['write', $frame->(substr $body, $middle)])
                  : (),
            $chunked ? ['write', "0\r\n\r\n"] : ());
}
