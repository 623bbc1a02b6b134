package Rows;

# The file of a store, as somebody sees it who may read and write it.
#
#    sqlite(FILE, SQL): rows as sqlite3 prints them; in scalar context the first
#    resum(FILE, TOKEN): a record's row has the sum that goes with it again

use strict;
use warnings;

use Exporter 'import';

our @EXPORT = qw(sqlite resum);


sub sqlite {
    my ($path, $sql) = @_;

    open my $out, '-|', 'sqlite3', '-batch', '-cmd', '.timeout 60000', $path, $sql
        or die "sqlite3: $!";

    my @rows = <$out>;
    close $out or die "sqlite3: $sql";
    chomp @rows;

    return wantarray ? @rows : $rows[0];
}


# A sum is against damage: who changes a row can make it anew.

sub sum_of {
    my ($bytes) = @_;

    my $h = length $bytes;

    for my $word (unpack 'Q<*', $bytes . "\0" x (-length($bytes) % 8)) {
        $h = product($h ^ $word, 0x9e3779b9, 0x7f4a7c15);
        $h ^= $h >> 32;
    }

    return product($h, 0xd6e8feb8, 0x6659fd93) >> 32;
}

# Modulo 2 ** 64, by the halves of the second.

sub product {
    my ($a, $high, $low) = @_;

    use integer;

    my ($al, $ah) = ($a & 0xffffffff, ($a >> 32) & 0xffffffff);
    my $r = $al * $low + (($al * $high + $ah * $low) << 32);

    no integer;

    return $r & ~0;
}

sub resum {
    my ($path, $token) = @_;

    my ($n, @hex) = split /\|/, sqlite($path,
        'SELECT instance, fence, recorded, ends, span, outcome, status, replays, '
        . 'coalesce(length(response), 0), hex(token), hex(fingerprint), hex(parts), hex(response) '
        . "FROM records WHERE token = x'$token'") =~ s/\|(?=[0-9A-F]{64})/:/r
                                                  =~ s/^(.*?):/($1 =~ tr{|}{,}r) . '|'/er;
    my @n = split /,/, $n;
    my $row = join('', map { pack 'H*', $_ } @hex[0 .. 2]) . pack('q<*', @n);

    return sqlite($path, 'UPDATE records SET sum = '
                         . unpack('q', pack 'Q', sum_of($row) << 32
                                                 | sum_of(pack 'H*', $hex[3] // ''))
                         . " WHERE token = x'$token'");
}

1;
