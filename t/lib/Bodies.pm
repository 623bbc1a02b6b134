package Bodies;

# Tables of bodies in blocks.  Each row has a key of its own, and becomes requests
# and what is expected of them.
#
#     --- bodies
#     a=1&b=2  ==  b=2&a=1  ==  &b=2&a=1    mean the same as the first: replayed
#              !=  a=1                      means something else: refused
#
# A line that begins with an operator goes on with the row before.  <0d 0a> stands
# for bytes, <> for nothing, and what follows two blanks and a # is a comment.
#
# With `--- key` a row is one body, and that is the key which it gives; or what is
# said where it gives none: MISSING (it passes, and is refused at /reject),
# MALFORMED, or UNREADABLE: refused wherever a key might be in the body, unless
# there is one in its header.  Rows are told apart by $arg_row.
#
# `--- bodies eval` gives lists, [ BODY, '==', BODY, ... ], or bodies; each text,
# or [ TYPE, BODY, CODING ].  `--- framing: both` sends each with its length and
# then in chunks or the other way round, `--- framing: 0 1 7` with its length
# and in chunks of so many bytes.  `--- uri: /a /b` sends the whole table to each,
# and a function that is given instead of a list makes one for each.
#
# All that is executed must have come to the upstream as it was sent.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use Exporter qw(import);
use Test::Nginx::Util ();

our @EXPORT = qw(part multipart);


# a part of a form, and a form of parts

sub part {
    my ($name, $body, %o) = @_;

    return "Content-Disposition: form-data; name=\"$name\""
           . (defined $o{file} ? "; filename=\"$o{file}\"" : '') . "\r\n"
           . (defined $o{type} ? "Content-Type: $o{type}\r\n" : '')
           . ($o{more} // '') . "\r\n$body";
}

sub multipart {
    my ($boundary, @parts) = @_;

    return [ "multipart/form-data; boundary=$boundary",
             join '', map({ "--$boundary\r\n$_\r\n" } @parts),
                      "--$boundary--\r\n" ];
}


sub rows {
    my ($table, $single) = @_;

    return $single ? map [ $_ ], @$table : @$table if ref $table;

    $table =~ s/(?:^|\s{2,})# .*//gm;
    $table =~ s/\n\s*(?=[!=]= )/ /g unless $single;

    return map {
        [ map { s/^\s+|\s+$//gr =~ s/<([0-9a-f ]*)>/pack 'H*', $1 =~ tr: ::dr/ger }
          $single ? $_ : split /\s([!=]=)(?:\s|$)/ ]
    } grep /\S/, split /\n/, $table;
}


# what Test::Nginx sends: the line and the body, and the header

sub request {
    my ($uri, $body, $chunk, @header) = @_;

    my ($type, $bytes, $coding) = ref $body ? @$body : (undef, $body);

    # three chunks, and what is left
    $chunk = int(length($bytes) / 3) || 1 if $chunk eq 'thirds';

    push @header, "Content-Type: $type" if length $type;
    push @header, "Content-Encoding: $coding" if defined $coding;
    push @header, $chunk ? 'Transfer-Encoding: chunked'
                         : 'Content-Length: ' . length $bytes;

    $bytes = join '', map({ sprintf "%x\r\n%s\r\n", length, $_ }
                          unpack "(a$chunk)*", $bytes), "0\r\n\r\n" if $chunk;

    return ("POST $uri\n$bytes", join "\n", @header);
}

# what the upstream answers

sub received {
    my $bytes = ref $_[0] ? $_[0][1] : $_[0];

    return sha256_hex($bytes) . ' ' . length($bytes) . "\n";
}


# [ PATH, BODY, CODE, STATUS, ANSWER, HEADER LINES ] of each request of a row

sub compared {
    my ($path, $row, $first, @others) = @_;

    my @key = "Idempotency-Key: $row";
    my @asked = ([ $path, $first, 200, 'NEW', received($first), @key ]);

    while (my ($op, $body) = splice @others, 0, 2) {
        push @asked, $op eq '=='
                     ? [ $path, $body, 200, 'REPLAYED', received($first), @key ]
                     : [ $path, $body, 409, 'CONFLICT', qr/conflict/, @key ];
    }

    return @asked;
}

sub keyed {
    my ($path, $key, $body) = @_;

    my @refused = (400, 'MALFORMED', qr/malformed/);

    return [ $path, $body, @refused ] if $key eq 'MALFORMED';

    my $received = received($body);

    return (map([ $path, $body, 200, '-', $received ], 1, 2),
            [ '/reject', $body, 400, 'MISSING', qr/missing/ ])
        if $key eq 'MISSING';

    $refused[2] = qr/may be in the content|to look for the idempotency key in it/;

    return (map([ $_, $body, @refused ], $path, '/content', '/reject'),
            [ $path, $body, 200, 'NEW', $received, 'Idempotency-Key: h' ])
        if $key eq 'UNREADABLE';

    return map [ $path, $body, 200, $_, $received ], 'NEW', 'REPLAYED';
}


Test::Nginx::Util::add_block_preprocessor(sub {
    my ($block) = @_;

    my $table = $block->bodies // return;
    my @header = split /\n/, $block->more_headers // '';
    my @framing = split ' ', ($block->framing // 0) =~ s/both/0 thirds/r;
    my $key = $block->key;
    my ($executed, $n, %is) = (0, 0);

    my $ask = sub {
        my ($row, $path, $body, $code, $status, $answer, @more) = @_;

        for my $way (@framing) {
            my ($request, $header)
                = request("$path?sha=1&row=$row", $body, $way, @header, @more);

            push @{$is{request}}, $request;
            push @{$is{more_headers}}, $header;
            push @{$is{error_code}}, $code;
            push @{$is{idempotency_status}}, $status;
            push @{$is{response_body}}, $answer;
            push @{$is{response_headers}}, $code == 200 ? "X-Key: [$key]" : ''
                if defined $key && $key !~ /^(?:MISSING|MALFORMED|UNREADABLE)$/;

            $executed++ if $status =~ /^(?:NEW|-)$/;
            $status =~ s/^NEW$/REPLAYED/;
        }
    };

    for my $path (split ' ', $block->uri // '/') {
        my @rows = rows(ref $table eq 'CODE' ? $table->($path) : $table,
                        defined $key);

        for (@rows) {
            my $row = $block->seq_num . '-' . ++$n;

            $ask->($row, @$_) for defined $key ? keyed($path, $key, @$_)
                                               : compared($path, $row, @$_);
            @framing = reverse @framing;
        }
    }

    $block->set_value($_ => $is{$_}) for keys %is;
    $block->set_value(idempotency_status => "@{$is{idempotency_status}}");
    $block->set_value(executions => $executed);
    $block->set_value(requests => scalar @{$is{request}});
});


1;
