// Long arrays, text and threads in a virtual machine that manages its memory itself; prints sums.
public class Arrays {
    public static void main(String[] words) {
        int parts = Integer.parseInt(words[0]);
        double[][] all = new double[parts][];
        java.util.stream.IntStream.range(0, parts).parallel().forEach(i -> {
            all[i] = new double[1 << 17];
            for (int j = 0; j < all[i].length; j++) all[i][j] = (i + 1) * (j % 97);
        });
        double sum = 0;
        for (double[] part : all) for (double value : part) sum += value;
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 500_000; i++) text.append(i % 1000);
        java.nio.ByteBuffer direct = java.nio.ByteBuffer.allocateDirect(24 << 20);
        for (int i = 0; i < direct.capacity(); i += 8) direct.putLong(i, i * 31L);
        long other = 0;
        for (int i = 0; i < direct.capacity(); i += 8) other += direct.getLong(i);
        System.out.println(sum + " " + text.toString().hashCode() + " " + other);
    }
}
